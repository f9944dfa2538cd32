"""Models of earlier steps (`save_every`): what the run would have saved there at its end, and no harm to the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from modules.checkpoint import read_model_config
from modules.run import RunFolder
from modules.run.folder.run_folder import run_of_model
from modules.run.folder.saved_models import saved_models
from modules.training.worker import run_worker
from scripts.sample_lora import LoraFile
from tests.pair_jobs import ADAPTERS, SHARDED_ADAPTERS
from tests.runs import Run, same_state, same_tensors, tiny_config, train_alone

pytestmark = pytest.mark.xdist_group("pair")

SETTINGS: dict[str, object] = {
    "family_options": {"dropout": 0.3, "batch_norm": True},
    "ema": True,
    "batch_size": 3,
    "save_dtype": "bf16",
    "max_steps": 8,
}
LONGER = {"max_steps": 17, "save_every": "16 steps"}
PAIR_JOBS: dict[str, dict[str, object]] = {
    "lora": ADAPTERS["lora"],
    "sharded lora": SHARDED_ADAPTERS["sharded lora"],
    "longer lora": {**ADAPTERS["lora"], **LONGER},
    "longer sharded lora": {**SHARDED_ADAPTERS["sharded lora"], **LONGER},
}


def steps_of(run: Run) -> list[int]:
    return [each.step for each in saved_models(run.folder)]


@pytest.fixture(scope="module")
def saving(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a model of every second step."""
    place = tmp_path_factory.mktemp("saving")
    code, run = train_alone(tiny_config(images, place, save_every="2 steps", backup_every="4 steps", **SETTINGS))
    assert code == 0, run.failure(0)
    return run


def test_each_is_what_the_run_saves_if_it_ends_there(images: Path, tmp_path: Path, saving: Run) -> None:
    assert steps_of(saving) == [2, 4, 6], "the last one is the finished model"
    _, short = train_alone(tiny_config(images, tmp_path, **{**SETTINGS, "max_steps": 4}))
    along, finished = saving.folder.saved_dir(4), short.folder.model_dir
    assert {each.name for each in along.iterdir()} == {each.name for each in finished.iterdir()}
    file = "weights.safetensors"
    assert same_tensors(load_file(along / file), load_file(finished / file))
    assert read_model_config(along).base_model == str(along)
    assert run_of_model(along / file) == run_of_model(along) == saving.folder
    assert str(LoraFile(along / file, 0.5, ())) == f"x/step 4/{file}:0.5", "above the images of several steps"
    assert [(event["step"], event["path"]) for event in saving.events("saved_model")] == [
        (step, str(saving.folder.saved_dir(step))) for step in (2, 4, 6)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", "sharded lora"])
def test_so_it_is_on_two_ranks(pair: dict[str, Run], name: str) -> None:
    (along,) = saved_models(pair[f"longer {name}"].folder)
    assert along.step == 16
    finished = pair[name].folder.model_dir
    for file in finished.glob("*.safetensors"):
        assert same_tensors(load_file(file), load_file(along.folder / file.name)), file
    assert pair[f"longer {name}"].losses[:16] == pair[name].losses


def test_the_run_is_the_same_to_the_bit_without_them(images: Path, tmp_path: Path, saving: Run) -> None:
    _, run = train_alone(tiny_config(images, tmp_path, **SETTINGS))
    assert same_state(run.state, saving.state)
    assert run.losses == saving.losses


def test_a_resumed_run_keeps_counting_and_removes_only_older_ones_of_its_own(
    images: Path, tmp_path: Path, saving: Run
) -> None:
    """It goes on from step 4, so that the model of step 6 is one of a past that is gone."""
    settings = {**SETTINGS, "save_every": "2 steps", "backup_every": "4 steps", "max_steps": 4}
    _, run = train_alone(tiny_config(images, tmp_path, **settings))
    mine = run.folder.saved_dir(2) / "mine.safetensors"
    mine.touch()
    (run.folder.saves_dir / "notes").mkdir()
    saving.folder.saved_dir(6).rename(run.folder.saved_dir(6))
    config = tiny_config(images, tmp_path, **{**settings, "max_steps": 9, "saves_kept": 1})
    code, run = train_alone(config, "latest")
    assert code == 0
    assert [event["step"] for event in run.events("saved_model")] == [2, 6, 8]
    assert steps_of(run) == [8]
    assert sorted(path.name for path in run.folder.saves_dir.iterdir()) == ["notes", "step-000002", "step-000008"]
    assert [*run.folder.saved_dir(2).iterdir()] == [mine]


def test_one_that_cannot_be_written_is_a_warning_and_the_run_the_same(
    images: Path, tmp_path: Path, saving: Run
) -> None:
    config = tiny_config(images, tmp_path, save_every="3 steps", **SETTINGS)
    run = Run(RunFolder.create(config))
    run.folder.saves_dir.touch()
    assert run_worker(config, run.folder) == 0
    assert "The model at step 3 could not be written" in run.warnings
    assert str(run.folder.saves_dir) in run.warnings
    assert "Training continues" in run.warnings
    assert same_state(run.state, saving.state)


def test_a_link_in_the_place_of_the_folder_is_not_followed(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path, save_every="3 steps", max_steps=4)
    run = Run(RunFolder.create(config))
    (tmp_path / "elsewhere").mkdir()
    run.folder.saves_dir.symlink_to(tmp_path / "elsewhere")
    assert run_worker(config, run.folder) in (0, 2)
    assert not [*(tmp_path / "elsewhere").iterdir()]
    assert saved_models(run.folder) == []


def test_the_single_file_of_a_step_goes_with_it(images: Path, tmp_path: Path) -> None:
    config = tiny_config(images, tmp_path, save_every="1 step", saves_kept=1, max_steps=3)
    _, run = train_alone(config)
    (own,) = saved_models(run.folder)
    own.file.touch()
    other = run.folder.saves_dir / "other-step-000002.safetensors"
    other.touch()
    train_alone(tiny_config(images, tmp_path, save_every="1 step", saves_kept=1, max_steps=5), "latest")
    assert not own.file.exists()
    assert other.exists()
