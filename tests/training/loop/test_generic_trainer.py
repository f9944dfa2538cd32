"""Whole runs on one process: length, validation, precision, recomputing, and what is written when."""

from __future__ import annotations

import errno
import gc
import math
from pathlib import Path

import pytest
from PIL import Image

from modules.checkpoint import backups
from modules.run import exit_codes
from modules.run.folder.commands import REGROUP, request_command
from modules.run.launch.restarts import SECONDS_BEFORE
from modules.training.actions import sample as sample_action
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.state.components import Components
from modules.training.studies.parity import weight_difference
from modules.training.worker import run_worker
from tests.runs import Run, group_exit_codes, opened, same_state, same_tensors, tiny_config, train_alone

pytestmark = pytest.mark.xdist_group("pair")

PAIR_JOBS: dict[str, dict[str, object]] = {
    "drop_last": {"drop_last": True, "max_steps": None, "epochs": 2},
    "patience": {
        "max_steps": 40,
        "learning_rate": 3.0,
        "validation_split": 0.2,
        "validate_every": "2 steps",
        "early_stopping_patience": 2,
    },
    "scaled": {"global_batch_size": None, "batch_size": 2, "lr_scaling": "linear", "max_steps": 3},
    "one encodes": {"distributed_data_loading": False, "max_steps": 1, "cache_dir": "cache of one"},
    "both encode": {"max_steps": 1, "cache_dir": "cache of two"},
}


def test_a_run_ends_after_its_epochs_or_its_steps(images: Path, tmp_path: Path) -> None:
    _, by_epochs = train_alone(tiny_config(images, tmp_path, run_name="e", epochs=2, max_steps=None))
    assert by_epochs.state.position.samples_seen == 2 * 41
    assert by_epochs.state.position.step == 12
    _, by_steps = train_alone(tiny_config(images, tmp_path, run_name="s", epochs=2, max_steps=3))
    assert by_steps.state.position.step == 3


@pytest.mark.slow
def test_drop_last_leaves_out_the_short_step(pair: dict[str, Run]) -> None:
    run = pair["drop_last"]
    assert run.state.position.step == 10
    assert run.state.position.samples_seen == 2 * 40


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
def test_every_precision_trains_on_the_cpu(images: Path, tmp_path: Path, precision: str) -> None:
    code, run = train_alone(tiny_config(images, tmp_path, precision=precision, max_steps=30))
    assert code == 0
    assert all(weight.dtype.itemsize == 4 for weight in run.state.weights.values())
    reported = [loss for loss in run.losses if math.isfinite(loss)]
    assert reported[-1] < reported[0]


@pytest.mark.slow
def test_recomputing_gives_the_same_losses(images: Path, tmp_path: Path) -> None:
    options = {"dropout": 0.2}
    _, plain = train_alone(tiny_config(images, tmp_path, run_name="p", family_options=options))
    code, saved = train_alone(
        tiny_config(images, tmp_path, run_name="s", family_options=options, gradient_checkpointing=True)
    )
    assert code == 0
    assert saved.losses == pytest.approx(plain.losses, rel=1e-6)


@pytest.mark.slow
def test_channels_last_differs_by_rounding_only(images: Path, tmp_path: Path) -> None:
    exact = {"precision": "fp64"}
    _, plain = train_alone(tiny_config(images, tmp_path, run_name="p", **exact))
    _, other = train_alone(tiny_config(images, tmp_path, run_name="c", channels_last=True, **exact))
    assert weight_difference(plain.state, other.state) < 1e-12


@pytest.mark.slow
def test_two_ranks_stop_early_at_the_same_validation(pair: dict[str, Run]) -> None:
    run = pair["patience"]
    assert group_exit_codes(run, 2) == [0, 0]
    assert run.events()[-1]["reason"] == "early_stopping"
    losses = [float(str(event["loss"])) for event in run.events("validation")]
    best = losses.index(min(losses))
    assert len(losses) == best + 3
    assert run.state.position.step == 2 * len(losses) < 40
    assert (run.folder.model_dir / "weights.safetensors").is_file()


@pytest.mark.slow
def test_validation_changes_nothing_in_the_training(images: Path, tmp_path: Path) -> None:
    split = {"validation_split": 0.2, "family_options": {"batch_norm": True, "dropout": 0.2}, "ema": True}
    _, without = train_alone(tiny_config(images, tmp_path, run_name="w", **split))
    _, run = train_alone(tiny_config(images, tmp_path, validate_every="1 step", **split))
    assert same_state(without.state, run.state)
    assert len(run.events("validation")) == 6


def test_validation_of_unchanged_weights_gives_the_same_loss(images: Path, tmp_path: Path) -> None:
    still = {"learning_rate": 1e-30, "validation_split": 0.3, "validate_every": "1 step"}
    _, run = train_alone(tiny_config(images, tmp_path, **still))
    assert len({event["loss"] for event in run.events("validation")}) == 1


@pytest.mark.slow
def test_without_a_fixed_batch_the_learning_rate_is_scaled(pair: dict[str, Run]) -> None:
    started = pair["scaled"].events("started")[0]
    assert started["global_batch_size"] == 4
    assert started["learning_rate"] == pytest.approx(0.02)
    assert started["original_learning_rate"] == pytest.approx(0.01)
    assert pair["scaled"].events("step")[0]["lr"] == pytest.approx(0.02)


@pytest.mark.slow
def test_ranks_share_the_encoding_unless_one_does_it_all(pair: dict[str, Run], pair_place: Path) -> None:
    def encoders(cache: str) -> set[str]:
        return {file.parent.name for file in (pair_place / cache).glob("rank-*/*.safetensors")}

    assert encoders("cache of two") == {"rank-0", "rank-1"}
    assert encoders("cache of one") == {"rank-0"}


def test_a_full_disk_is_a_warning_while_training(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/checkpoint and the fault suite have real full disks; here it is full for the second backup alone."""
    write = backups._write_files

    def write_files(folder: Path, *state: object, **options: object) -> object:
        files = write(folder, *state, **options)  # type: ignore[arg-type]
        if folder.name.endswith("step-000004"):
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        return files

    monkeypatch.setattr(backups, "_write_files", write_files)
    kept = {"backup_every": "2 steps", "backups_kept": 1, "backups_kept_every": 2}
    code, run = train_alone(tiny_config(images, tmp_path, max_steps=6, **kept))
    assert code == 0
    assert "The backup at step 4 could not be written" in run.warnings
    assert sorted(path.name for path in run.folder.backup_dir.iterdir()) == ["step-000002", "step-000006"]
    assert [event["step"] for event in run.events("backup")] == [2, 6]
    assert not list(run.folder.backup_dir.glob("*step-000004"))


def test_on_a_full_disk_a_run_goes_on_with_other_machines_at_a_later_backup(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = backups._write_files

    def write_files(folder: Path, *state: object, **options: object) -> object:
        if folder.name.endswith("step-000002"):
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        return write(folder, *state, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(backups, "_write_files", write_files)
    monkeypatch.setenv(SECONDS_BEFORE, "0")
    config = tiny_config(images, tmp_path, max_steps=9, backup_every="2 steps")
    folder = opened(config)
    request_command(folder, REGROUP)
    assert run_worker(config, folder) == 0
    run = Run(folder)
    assert run.warnings.count("could not be written") == 1
    assert [event["step"] for event in run.events("backup")] == [4]
    assert run.events()[-1]["phase"] == "regrouping"


def test_any_error_of_an_optional_action_is_a_warning_that_says_where(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_grid(samples: object) -> object:
        raise ValueError("there is no such grid")

    monkeypatch.setattr(sample_action, "make_grid", make_grid)
    samples = [{"prompt": "x", "steps": 1, "width": 16, "height": 16}]
    code, run = train_alone(tiny_config(images, tmp_path, max_steps=4, samples=samples, sample_every="2 steps"))
    assert code == 0
    assert run.warnings.count("in the sample, so it is left out and training continues: ") == 2
    assert "ValueError: there is no such grid. Full traceback: " in run.warnings
    assert "in make_grid" in run.folder.log_file(0).read_text()
    assert run.folder.model_dir.is_dir()
    phases = [event["phase"] for event in run.events("phase")]
    drawn = ["training", "sampling", "sampling"]  # by the runner, and with the number of images
    assert phases[phases.index("training") :][:8] == [*drawn, *drawn, "training", "saving"]


def test_methods_that_are_not_there_yet_are_refused(images: Path, tmp_path: Path) -> None:
    code, run = train_alone(tiny_config(images, tmp_path, run_name="a", method="lora"))
    assert code == 2
    assert "method is 'lora'" in run.failure(0)


def test_data_parallel_on_one_device_trains_the_same(images: Path, tmp_path: Path) -> None:
    _, plain = train_alone(tiny_config(images, tmp_path, run_name="p"))
    code, run = train_alone(tiny_config(images, tmp_path, training_mode="data_parallel"))
    assert code == 0
    assert same_state(plain.state, run.state)


def test_test_images_are_evaluated_once_and_never_trained_on(images: Path, tmp_path: Path) -> None:
    concepts = [{"path": str(images)}, {"path": str(images), "kind": "test"}]
    _, plain = train_alone(tiny_config(images, tmp_path, run_name="p"))
    code, run = train_alone(tiny_config(images, tmp_path, concepts=concepts))
    assert code == 0
    assert [(event["set"], event["step"]) for event in run.events("validation")] == [("test", 6)]
    assert run.events("started")[0]["steps_per_epoch"] == plain.events("started")[0]["steps_per_epoch"]
    assert same_state(run.state, plain.state)


def test_the_average_is_validated_and_sampled_but_not_trained(images: Path, tmp_path: Path) -> None:
    settings = {
        "validation_split": 0.2,
        "validate_every": "6 steps",
        "learning_rate": 0.1,
        "ema_decay": 0.9,
        "samples": [{"prompt": "x", "steps": 1}],
        "sample_every": "6 steps",
    }
    shown = []
    runs = [train_alone(tiny_config(images, tmp_path / str(ema), ema=ema, **settings))[1] for ema in (False, True)]
    assert runs[0].losses == runs[1].losses
    assert same_tensors(runs[0].state.weights, runs[1].state.weights)
    for run in runs:
        (validation,), (file,) = run.events("validation"), run.folder.samples_dir.glob("*-00.png")
        with Image.open(file) as image:
            shown.append((validation["loss"], image.tobytes()))
    assert shown[0][0] != shown[1][0]
    assert shown[0][1] != shown[1][1]


def test_a_stop_during_sampling_leaves_out_the_remaining_samples(images: Path, tmp_path: Path) -> None:
    """And the run continues as if it had never stopped."""
    samples = [{"prompt": f"stop on rank {rank}", "width": 16, "height": 16} for rank in (9, 0, 9, 9)]
    steady = {"scheduler": "constant", "warmup_steps": 0}
    place = {"run_name": "stopped", "sample_every": "2 steps", **steady}
    code, run = train_alone(tiny_config(images, tmp_path, samples=samples, max_steps=10_000, **place))
    assert code == exit_codes.TERMINATED
    drawn = sorted(file.name for file in run.folder.samples_dir.iterdir() if "000002" in file.name)
    assert drawn == [f"step-000002-{number}.png" for number in ("00", "01", "grid")]
    steps = run.state.position.step + 4
    train_alone(tiny_config(images, tmp_path, samples=[], max_steps=steps, **place), "latest")
    _, whole = train_alone(tiny_config(images, tmp_path, run_name="whole", max_steps=steps, **steady))
    assert same_state(run.state, whole.state)


def test_a_stop_is_seen_however_often_backups_are_written(images: Path, tmp_path: Path) -> None:
    """A backup reads the metrics before they are due, so that they are never due; a request comes along with them."""
    often = {"backup_every": "2 steps", "sample_every": "60 steps", "max_steps": 200}
    samples = [{"prompt": "stop on rank 0", "width": 16, "height": 16}]
    code, run = train_alone(tiny_config(images, tmp_path, samples=samples, scheduler="constant", **often))
    assert code == exit_codes.TERMINATED
    assert run.state.position.step < 100


def test_a_finished_run_keeps_no_memory(images: Path, tmp_path: Path) -> None:
    train_alone(tiny_config(images, tmp_path, max_steps=1))  # what torch imports at first keeps frames alive
    gc.collect()
    gc.disable()
    try:
        code, _ = train_alone(tiny_config(images, tmp_path, max_steps=1, run_name="y"))
        left = [each for each in gc.get_objects() if isinstance(each, GenericTrainer | Components)]
    finally:
        gc.enable()
    assert (code, left) == (0, [])
