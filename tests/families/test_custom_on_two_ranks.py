"""The worked examples, and a model of one's own in general, on two real processes: the same as on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules import ROOT
from modules.training.studies.parity import loss_difference, weight_difference
from tests.families.test_custom import config_of
from tests.runs import Job, Run, group_exit_codes, group_settings, train_alone, train_group

EXAMPLES = ROOT / "examples"
OPTIONS: dict[str, dict[str, object]] = {
    "graph_network": {"graphs": 21, "width": 4, "layers": 1},
    "small_gpt": {"context": 8, "head_width": 2, "layers": 1},
    "image_regression": {"images": 21, "side": 16, "width": 2},
    "email_classifier": {"width": 4},
}
POINTS: dict[str, dict[str, object]] = {
    "dropout and EMA": {"family_options": {"dropout": 0.3}, "ema": True},
    "mean": {"family_options": {"loss": "mean"}},
    "sharded": {"training_mode": "fully_sharded"},
}
FAULTS = {
    "unused": "2 of 6 trained weights did not contribute",
    "lengths": "have 41 7 5 items on rank 0, but 42 7 5 on rank 1",
    "item": "Item 5 of the training data",  # last: only one rank sees it, and the other's process is ended
}
UNSEEDED = "unseeded"


def settings_of(name: str, place: Path) -> dict[str, object]:
    """The last step of an epoch has 5 samples, so that one rank has fewer than the other; the validation 101."""
    common: dict[str, object] = {
        "run_name": name.replace(" ", "-"),
        "validate_every": "3 steps",
        "backup_every": "never",
    }
    if name in POINTS:
        return {**common, **POINTS[name]}
    if name in (*FAULTS, UNSEEDED):
        return {**common, "family_options": {"fault": name}}
    family = str(EXAMPLES / f"{name}.py")
    if name == "small_gpt":
        folder = place / "texts"
        folder.mkdir(exist_ok=True)
        (folder / "a.txt").write_text("The quick brown fox jumps over the lazy dog. " * 9)
        return {**common, "family": family, "family_options": {**OPTIONS[name], "folder": str(folder)}, "max_steps": 3}
    split = 0.1 if name == "email_classifier" else 0.0
    return {**common, "family": family, "family_options": OPTIONS[name], "validation_split": split, "max_steps": 3}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every run on two ranks; starting the processes is what takes time."""
    place = tmp_path_factory.mktemp("group")
    jobs = {}
    for name in (*OPTIONS, *POINTS, UNSEEDED, *FAULTS):
        settings = {**group_settings(2), **settings_of(name, place)}
        jobs[name] = Job(config_of(place, **settings))
    return train_group(2, jobs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OPTIONS, *POINTS])
def test_two_ranks_train_what_one_trains(name: str, group: dict[str, Run], tmp_path: Path) -> None:
    run = group[name]
    assert group_exit_codes(run, 2) == [0, 0], run.failure(0) + run.failure(1)
    settings = settings_of(name, tmp_path)
    settings.pop("training_mode", None)
    code, alone = train_alone(config_of(tmp_path, **settings))
    assert code == 0, alone.failure(0)
    assert loss_difference(alone.losses, run.losses) < 1e-9
    assert weight_difference(alone.state, run.state) < 1e-9
    pairs = list(zip(alone.events("validation"), run.events("validation"), strict=True))
    assert pairs
    for one, two in pairs:
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-9)
        assert one["metrics"] == pytest.approx(two["metrics"], rel=1e-9)
    assert "number of GPUs" not in alone.warnings + run.warnings
    assert (run.folder.model_dir / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_two_ranks_is_one_sentence(name: str, group: dict[str, Run]) -> None:
    failures = group[name].failure(0) + group[name].failure(1)
    assert FAULTS[name] in failures


@pytest.mark.slow
def test_random_numbers_that_differ_between_ranks_are_noticed(group: dict[str, Run]) -> None:
    assert group_exit_codes(group[UNSEEDED], 2) == [0, 0]
    assert "Item 0 of the data is not the same on all ranks" in group[UNSEEDED].warnings
    assert all("not the same on all ranks" not in group[name].warnings for name in (*OPTIONS, *POINTS))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_example_says_how_it_is_started(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert f"python scripts/train.py --config examples/{name}.py" in text
