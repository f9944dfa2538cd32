"""Runs of two ranks on two pretended GPUs, whose collectives go through gloo and host memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fake_cuda.build import extension_file, obstacle
from tests.fake_cuda.matrix import json_lines
from tests.fake_cuda.run_cases import Result
from tests.fake_cuda.run_ranks import WORLD_SIZE
from tests.ports import free_port
from tests.runs import Run, group_settings, opened, tiny_config, train_alone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test waits for all runs, on a machine that runs other tests
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
]
# fp64, so that the losses are those of one process
SAME: dict[str, object] = {"precision": "fp64", "pin_memory": True, "batch_size": 2}
JOBS: dict[str, dict[str, object]] = {
    "ddp": {},
    "ddp_ema": {"ema": True, "backup_every": "4 steps"},
    "sharded": {"training_mode": "fully_sharded"},
    "sharded_ema": {"training_mode": "fully_sharded", "ema": True, "backup_every": "4 steps"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(images: Path, place: Path) -> dict[str, tuple[Run, list[Result]]]:
    """Each run, and what its ranks showed; all in the same two processes."""
    extension_file()
    runs, jobs = {}, []
    for name, settings in JOBS.items():
        config = tiny_config(images, place, run_name=name, **{**SAME, **group_settings(WORLD_SIZE), **settings})
        runs[name] = Run(opened(config, None))
        jobs.append(f"{free_port()}:{runs[name].folder.path}")

    def of_rank(rank: int) -> Iterator[dict[str, Any]]:
        return json_lines([sys.executable, "-m", "tests.fake_cuda.run_ranks", str(rank), *jobs], len(jobs))

    with ThreadPoolExecutor(WORLD_SIZE) as threads:
        found = list(threads.map(lambda rank: list(of_rank(rank)), range(WORLD_SIZE)))
    by_rank = [[Result(**each) for each in ours] for ours in found]
    return {name: (runs[name], list(ranks)) for name, *ranks in zip(JOBS, *by_rank, strict=True)}


@pytest.mark.parametrize("name", JOBS)
def test_the_losses_are_those_of_one_process(
    name: str, images: Path, tmp_path: Path, results: dict[str, tuple[Run, list[Result]]]
) -> None:
    run, ranks = results[name]
    assert [rank.exit_code for rank in ranks] == [0] * WORLD_SIZE, ranks
    code, alone = train_alone(tiny_config(images, tmp_path, **SAME))
    assert code == 0
    assert run.losses == pytest.approx(alone.losses, rel=1e-9)


@pytest.mark.parametrize("name", JOBS)
def test_each_rank_uses_its_own_gpu_and_never_waits_for_its_newest_work(
    name: str, results: dict[str, tuple[Run, list[Result]]]
) -> None:
    _, ranks = results[name]
    for number, rank in enumerate(ranks):
        assert rank.is_clean, rank.summary()
        assert rank.contexts == [number]
        assert rank.judged_steps
