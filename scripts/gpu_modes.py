"""The tiny runs of a check of scripts/gpu_check_list.py, in one rank of its group."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from modules.config import TrainConfig
from modules.distributed import RankEnv
from modules.run import RunFolder, root_cause
from modules.training.worker import run_worker
from scripts.gpu_check_list import (
    ANSWER,
    GLOBAL_BATCH,
    ONLY_ON_GPU,
    SINGLE_PROCESS,
    Check,
    CheckFailed,
    Runs,
    checks,
    require,
)
from scripts.gpu_worker import publish
from scripts.make_demo_data import make_demo_data
from tests.environment import LAUNCHER_VARIABLES
from tests.ports import free_port
from tests.runs import Run, group_exit_codes, group_settings, opened, tiny_config, train_alone


def run_check(device: torch.device, place: Path, *, name: str, backend: str, ranks: int, rank: int) -> str:
    """Train the runs of a check, as one of `ranks` processes that all call this; rank 0 returns the outcome."""
    torch.set_num_threads(1)
    check = next(check for check in checks(ranks) if check.name == name)
    group = {**group_settings(ranks), "distributed_backend": backend}
    # the resumed run continues in the folder of the half one
    configs = {
        job: config_of(place, "half" if job == "resumed" else job, {**group, **settings})
        for job, settings in check.jobs.items()
    }
    if rank == 0:
        make_demo_data(place.parent / "images", count=41)
        for job, config in configs.items():
            opened(config, "latest" if job == "resumed" else None)
        publish(place / "ports", json.dumps([free_port() for _ in configs]))
    ports = json.loads(wait_for(place / "ports"))
    runs = {}
    try:
        for port, (job, config) in zip(ports, configs.items(), strict=True):
            folder = RunFolder(Path(config.runs_dir) / str(config.run_name))
            rank_env = RankEnv(rank, rank, ranks, "127.0.0.1", port)
            code = run_worker(config, folder, rank_env, resume="latest" if job == "resumed" else None)
            (folder.log_dir / f"exit-{rank}").write_text(str(code))
            runs[job] = Run(folder)
    finally:
        publish(place / f"done-{rank}", "")
    if rank:
        return ""
    for other in range(ranks):
        wait_for(place / f"done-{other}")
    return evaluate(check, runs, trained_alone(place.parent), ranks, device)


def evaluate(check: Check, runs: Runs, reference: Runs, ranks: int, device: torch.device) -> str:
    """One cell of the table. Raises CheckFailed."""
    for run in runs.values():
        if any(group_exit_codes(run, ranks)):
            cause = root_cause(run.folder)
            reason = "no reason was recorded" if cause is None else cause.message.splitlines()[0]
            if cause is not None and cause.kind == "config" and device.type == "cpu":
                return f"{ONLY_ON_GPU}: {reason}"
            raise CheckFailed(reason)
    return check.evaluate(runs, reference)


class TrainedAlone(dict[str, Run]):
    """The runs of one process with which others are compared, by their name in SINGLE_PROCESS; trained when asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Run:
        for variable in LAUNCHER_VARIABLES:  # of the group's last run
            os.environ.pop(variable, None)
        code, run = train_alone(config_of(self._folder / f"alone-{os.getpid()}", name, SINGLE_PROCESS[name]))
        require(code == 0, f"the run of one process ended with exit code {code}")
        self[name] = run
        return run


trained_alone = cache(TrainedAlone)  # one for the process


def config_of(place: Path, name: str, settings: Mapping[str, object]) -> TrainConfig:
    """Ten steps of the tests' tiny family; the images are beside `place`."""
    defaults = {"startup_timeout_s": 180, "step_timeout_s": 60, "max_steps": 10, "global_batch_size": GLOBAL_BATCH}
    place.mkdir(parents=True, exist_ok=True)
    settings = {**defaults, "run_name": name.replace(" ", "-"), **settings}
    return tiny_config(place.parent / "images", place, **settings)


def wait_for(file: Path) -> str:
    """What another rank publishes. Raises CheckFailed if rank 0 has failed; whoever started this limits the time."""
    while not file.exists():
        require(not (file.parent / ANSWER).exists(), "rank 0 has failed")
        time.sleep(0.02)
    return file.read_text(encoding="utf-8")
