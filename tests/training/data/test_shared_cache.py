"""Two ranks that share a cache folder, but are about to train on different images."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import modules.training.data.dataset as dataset
from modules.config import TrainConfig
from modules.data.index.build import build_index
from modules.data.index.index import load_index
from modules.distributed import RankEnv
from modules.run import Failure, RunFolder, root_cause
from modules.training.worker import run_worker
from tests.pair_jobs import TIMEOUTS
from tests.ports import free_port
from tests.runs import Run, group_settings, in_ranks, tiny_config

pytestmark = pytest.mark.slow

JOBS = ("other folders", "old index")
SIZE_STEP = 8  # of the tiny family


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    """The folders of two ranks, in which the jobs have been done."""
    top = tmp_path_factory.mktemp("shared")
    for rank in (0, 1):
        shutil.copytree(images, top / str(rank) / "images")
    for job in JOBS:
        RunFolder.create(_config(top, job, 0))
    ports = [free_port() for _ in range(len(JOBS) + 1)]
    in_ranks(_work, 2, ports[-1], (top, ports))
    return top


def _config(top: Path, job: str, rank: int) -> TrainConfig:
    # a concept's path is a local setting: a machine may give another one
    images = top / str(rank if job == "other folders" else 0) / "images"
    settings = {"runs_dir": str(top / "runs"), "run_name": job.replace(" ", "-"), "cache_dir": str(top / job)}
    return tiny_config(images, top, **{**group_settings(2), **TIMEOUTS, **settings, "max_steps": 2})


def _work(rank: RankEnv, top: Path, ports: list[int]) -> None:
    torch.set_num_threads(1)
    for job, port in zip(JOBS, ports, strict=False):
        config = _config(top, job, rank.rank)
        if job == "other folders":
            # an earlier run on each machine alone has left its index
            build_index(config, config.seed, SIZE_STEP, Path(config.cache_dir))
        elif rank.rank == 1:
            _show_old_index(config, top)
        run_worker(config, RunFolder.open(config.runs_dir, str(config.run_name)), replace(rank, master_port=port))


def _show_old_index(config: TrainConfig, top: Path) -> None:
    """From now on this process reads the index as a network drive may: as it was one image ago."""
    more = top / "0" / "images" / "new.png"
    old = shutil.copy(build_index(config, config.seed, SIZE_STEP, top / "before").path, top / "old.safetensors")
    shutil.copy(next(more.parent.rglob("*.png")), more)
    module: Any = dataset
    module.load_index = lambda path: load_index(Path(old))


def failure(place: Path, job: str) -> Failure:
    run = Run(RunFolder(place / "runs" / job.replace(" ", "-")))
    assert not run.events("step")
    cause = root_cause(run.folder)
    assert cause is not None
    return cause


def test_other_folders_are_named(place: Path) -> None:
    cause = failure(place, "other folders")
    assert cause.kind == "config"
    assert "their concepts are in different folders" in cause.message
    for rank in (0, 1):
        assert os.fspath(place / str(rank) / "images") in cause.message


def test_an_old_index_is_noticed(place: Path) -> None:
    cause = failure(place, "old index")
    assert cause.kind == "data"
    assert "read different data from it" in cause.message
