"""A run that was stopped continues as if it had not been."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from modules.run.folder.commands import REGROUP, request_command
from modules.run.launch.restarts import SECONDS_BEFORE
from modules.training.studies.parity import weight_difference
from modules.training.worker import run_worker
from tests.pair_jobs import ADAPTERS, FP64_JOBS, PARITY, STATEFUL
from tests.runs import Run, opened, same_state, tiny_config, train_alone

pytestmark = pytest.mark.xdist_group("pair")

STATEFUL_LORA: dict[str, object] = {
    **ADAPTERS["lora"],
    "precision": "fp32",
    "lora_dropout": 0.2,
    "ema": True,
    "batch_size": 3,
}
PAIR_JOBS: dict[str, dict[str, object]] = {
    **FP64_JOBS,
    "uninterrupted": STATEFUL,
    "half": {**STATEFUL, "max_steps": 4},
    "resumed": {**STATEFUL, "resumes": "half"},
    "lora uninterrupted": STATEFUL_LORA,
    "half a lora": {**STATEFUL_LORA, "max_steps": 6},
    "lora resumed": {**STATEFUL_LORA, "resumes": "half a lora"},
    "small and frozen": {
        **ADAPTERS["lora"],
        "precision": "bf16",
        "parts": [{"part": "unet", "weights": "bf16"}],
        "gradient_checkpointing": True,
    },
    "late": {**PARITY, "max_steps": 9},
    # seven steps on one rank, into the second epoch, then on two
    "grows": {**PARITY, "max_steps": 7, "ranks": 1},
    "grown": {**PARITY, "max_steps": 20, "resumes": "grows"},
}

# dropout, running averages, EMA, and a schedule: everything that could depend on more than the position
TOUCHY: dict[str, object] = {
    "family_options": {"dropout": 0.3, "batch_norm": True},
    "ema": True,
    "scheduler": "cosine",
    "warmup_steps": 3,
    "batch_size": 3,
    "max_steps": 10,
}


def stopped_after(run: Run, step: int, at: Path) -> Path:
    """A copy of the run as it was after `step`."""
    shutil.copytree(run.folder.path, at / "runs" / "x")
    for backup in (at / "runs" / "x" / "backup").iterdir():
        if backup.name > f"step-{step:06d}":
            shutil.rmtree(backup)
    return at


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Ten steps without a pause, with a backup after each."""
    place = tmp_path_factory.mktemp("whole")
    code, run = train_alone(tiny_config(images, place, backup_every="1 step", backups_kept=99, **TOUCHY))
    assert code == 0
    assert run.state.ema is not None  # two states without an average would be the same
    return run


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 4, 6, 9])
def test_a_resumed_run_ends_in_the_same_bits(images: Path, tmp_path: Path, whole: Run, step: int) -> None:
    code, run = train_alone(tiny_config(images, stopped_after(whole, step, tmp_path), **TOUCHY), "latest")
    assert code == 0
    assert run.state.position.step == 10
    assert same_state(run.state, whole.state)
    assert run.events("step")[-1]["loss"] == whole.events("step")[-1]["loss"]
    assert run.events("step")[-1]["lr"] == whole.events("step")[-1]["lr"]


@pytest.mark.slow
def test_an_adapter_on_two_ranks_ends_in_the_same_bits(pair: dict[str, Run]) -> None:
    assert same_state(pair["lora resumed"].state, pair["lora uninterrupted"].state)
    assert pair["lora resumed"].losses[-10:] == pair["lora uninterrupted"].losses[-10:]
    assert pair["small and frozen"].exit_code == 0


@pytest.mark.slow
def test_a_given_backup_begins_a_run_of_its_own(images: Path, tmp_path: Path, whole: Run) -> None:
    backup = whole.folder.backup_dir / "step-000004"
    code, run = train_alone(tiny_config(images, tmp_path, run_name="branch", **TOUCHY), str(backup))
    assert code == 0
    assert run.events("step")[0]["step"] == 5
    assert same_state(run.state, whole.state)


@pytest.mark.slow
def test_with_persistent_loader_workers_it_is_the_same_run(images: Path, tmp_path: Path, whole: Run) -> None:
    workers = {"loader_workers": 1, "persistent_workers": True}
    code, run = train_alone(tiny_config(images, stopped_after(whole, 4, tmp_path), **TOUCHY, **workers), "latest")
    assert code == 0
    assert same_state(run.state, whole.state)


def test_a_damaged_newest_backup_falls_back_to_an_older_one(images: Path, tmp_path: Path, whole: Run) -> None:
    place = stopped_after(whole, 6, tmp_path)
    damaged = place / "runs" / "x" / "backup" / "step-000006" / "weights.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(bytes(data))
    code, run = train_alone(tiny_config(images, place, **TOUCHY), "latest")
    assert code == 0
    assert "step-000006 is damaged: the checksum of weights.safetensors does not match" in run.warnings
    assert same_state(run.state, whole.state)


def test_with_every_backup_damaged_nothing_starts(images: Path, tmp_path: Path, whole: Run) -> None:
    place = stopped_after(whole, 1, tmp_path)
    (place / "runs" / "x" / "backup" / "step-000001" / "manifest.json").write_text("{")
    code, run = train_alone(tiny_config(images, place, **TOUCHY), "latest")
    assert code == 2
    assert "is undamaged" in run.failure(0)


def test_a_run_that_is_to_go_on_with_other_machines_ends_at_its_next_backup(
    images: Path, tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a `finished` event: what follows is the same run."""
    monkeypatch.setenv(SECONDS_BEFORE, "0")
    config = tiny_config(images, tmp_path, backup_every="2 steps", **TOUCHY)
    folder = opened(config)
    request_command(folder, REGROUP)
    assert run_worker(config, folder) == 0
    run = Run(folder)
    assert [event["step"] for event in run.events("step")] == [1, 2]
    assert run.events()[-1]["phase"] == "regrouping"
    assert not run.events("finished")
    assert not list(folder.commands_dir.iterdir())
    code, run = train_alone(config, resume="latest")
    assert code == 0
    assert same_state(run.state, whole.state)


def test_a_run_without_a_backup_begins_at_its_first_step(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path, max_steps=2)
    _, first = train_alone(config)
    shutil.rmtree(first.folder.backup_dir)
    code, run = train_alone(config, "latest")
    assert code == 0
    assert run.state.position.step == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"family_options": {"width": 9, "batch_norm": True}}, "does not fit this config"),
        ({"family_options": {"dropout": 0.3, "batch_norm": False}}, "another model"),
        ({"optimizer": "sgd", "family_options": {"dropout": 0.3, "batch_norm": True}}, "has 'adamw'"),
        ({"optimizer": "lion", "family_options": {"dropout": 0.3, "batch_norm": True}}, "optimizer.name is 'lion'"),
        ({"method": "lora"}, "method is 'lora', but the run of this backup has 'fine_tune'"),
        ({"family": "pixel_diffusion", "family_options": {}}, "family is 'pixel_diffusion', but the run"),
        ({"global_batch_size": 12}, "global_batch_size is 12"),
    ],
)
def test_a_backup_of_another_model_or_batch_is_refused(
    images: Path, tmp_path: Path, whole: Run, settings: dict[str, object], said: str
) -> None:
    place = stopped_after(whole, 4, tmp_path)
    code, run = train_alone(tiny_config(images, place, **{**TOUCHY, **settings}), "latest")
    assert code == 2, run.failure(0)
    assert run.failure(0).startswith("resume: ") or "global_batch_size" in run.failure(0)
    assert said in run.failure(0)


def test_an_epoch_goes_on_with_what_it_has_not_shown_whatever_happens_to_the_files(
    images: Path, tmp_path: Path
) -> None:
    folder, drawn = Path(shutil.copytree(images, tmp_path / "images")), tmp_path / "drawn"
    drawn.mkdir()
    options = {"family_options": {"record": str(drawn)}, "validation_split": 0.1}
    code, run = train_alone(tiny_config(folder, tmp_path, **options, max_steps=3))
    assert code == 0
    first = [line[-1] for line in recorded_lines(drawn)]  # the caption of each sample as a number
    for suffix in (".png", ".txt"):
        for number in (0, 1, 2):
            (folder / f"{number:02}{suffix}").rename(folder / f"later {number:02}{suffix}")
        (folder / f"40{suffix}").unlink()
        shutil.copy(folder / f"39{suffix}", folder / f"03 new{suffix}")
    with (folder / "03 new.png").open("ab") as file:
        file.write(b"other bytes")
    (folder / "03 new.txt").write_text("a new one")
    code, run = train_alone(tiny_config(folder, tmp_path, **options, epochs=1, max_steps=99), "latest")
    assert code == 0
    shown = [line[-1] for line in recorded_lines(drawn)]
    held_out = 4
    assert len(first) == 24
    assert len(set(shown)) == len(shown), "none is repeated"
    assert 41 - held_out <= len(shown) <= 41 - held_out + 2, "none is left out; one that is gone was shown, or not"
    assert "The data has changed since the backup: 1 came (03 new.png), 1 went (40.png), 3 " in run.warnings
    assert "renamed or moved (00.png -> later 00.png, 01.png -> later 01.png, 02.png -> later 02.png)" in run.warnings
    assert f"The epoch goes on with the {len(shown) - 24} samples of these that it has not shown yet" in run.warnings
    assert run.state.position.epoch == 1


def recorded_lines(folder: Path) -> list[list[float]]:
    return [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]


def test_a_run_that_is_done_says_so(
    images: Path, tmp_path: Path, whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    place = stopped_after(whole, 10, tmp_path)
    capsys.readouterr()
    code, run = train_alone(tiny_config(images, place, **TOUCHY), "latest")
    assert code == 0
    assert "done already; raise epochs or max_steps" in capsys.readouterr().out
    assert same_state(run.state, whole.state)


@pytest.mark.slow
def test_two_ranks_resume_in_the_same_bits(pair: dict[str, Run]) -> None:
    whole, resumed = pair["uninterrupted"], pair["resumed"]
    assert [event["step"] for event in resumed.events("step")] == list(range(1, 11))
    assert resumed.losses == whole.losses
    assert same_state(resumed.state, whole.state)


@pytest.mark.slow
def test_a_run_of_one_rank_goes_on_with_two(images: Path, tmp_path: Path, pair: dict[str, Run]) -> None:
    _, alone = train_alone(tiny_config(images, tmp_path, **{**PARITY, "max_steps": 20}))
    assert weight_difference(alone.state, pair["grown"].state) <= 1e-9
    assert pair["grown"].losses == pytest.approx(alone.losses, rel=1e-9)


@pytest.mark.slow
def test_a_run_of_two_ranks_goes_on_with_one(images: Path, tmp_path: Path, pair: dict[str, Run]) -> None:
    backup = pair["late"].folder.backup_dir / "step-000009"
    _, shrunk = train_alone(tiny_config(images, tmp_path, **PARITY), str(backup))
    assert shrunk.events("step")[0]["step"] == 10
    assert weight_difference(pair["fp64"].state, shrunk.state) <= 1e-9
