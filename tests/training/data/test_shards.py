"""Runs from tar shards: the same weights, to the bit, as from folders of the same names, on one rank or two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.shards import two_shards
from tests.runs import Job, Run, group_exit_codes, same_state, tiny_config, train_alone, train_group
from tests.training.data.test_on_the_fly import AUGMENTED, FRESH


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user_cache"))


def trained(images: Path, place: Path, **settings: object) -> Run:
    code, run = train_alone(tiny_config(images, place, **settings))
    assert code == 0, run.failure(0)
    return run


@pytest.mark.slow
def test_a_run_from_shards_is_that_from_folders(masked_images: Path, tmp_path: Path) -> None:
    packed, unpacked = two_shards(masked_images, tmp_path)
    settings = {"masked_training": True, "validation_split": 0.2, "precision": "fp64"}
    first = trained(packed, tmp_path / "first", **settings)
    second = trained(unpacked, tmp_path / "second", **settings)
    assert first.losses == second.losses
    assert same_state(first.state, second.state)


@pytest.mark.slow
def test_without_the_cache_two_ranks_and_a_resume_train_the_same(masked_images: Path, tmp_path: Path) -> None:
    packed, unpacked = two_shards(masked_images, tmp_path)
    settings = {**FRESH, "backup_every": "2 steps", "loader_workers": 1}
    alone = trained(packed, tmp_path / "a", **settings, concepts=[{"path": str(packed), **AUGMENTED}])
    folders = trained(unpacked, tmp_path / "b", **settings, concepts=[{"path": str(unpacked), **AUGMENTED}])
    assert same_state(alone.state, folders.state)
    config = tiny_config(packed, tmp_path / "c", **settings, concepts=[{"path": str(packed), **AUGMENTED}])
    backup = sorted(alone.folder.backup_dir.iterdir())[0]
    resumed = config.model_copy(update={"run_name": "resumed", "loader_workers": 0})  # each imports torch
    runs = train_group(2, {"both": Job(config), "resumed": Job(resumed, str(backup))})
    for run, losses in ((runs["both"], alone.losses), (runs["resumed"], alone.losses[2:])):
        assert group_exit_codes(run, 2) == [0, 0], run.failure(0)
        assert run.losses == pytest.approx(losses, rel=1e-12)
