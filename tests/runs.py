"""Real small runs for the tests: in this process, in a group of real gloo processes, and by the real command."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from modules.checkpoint import Backups, TrainingState, read_backup
from modules.config import TrainConfig, save_config
from modules.distributed import Group, RankEnv, spawn
from modules.distributed.startup.store import LAUNCHER_STORE_VARIABLE
from modules.run import Event, RunFolder, read_events
from modules.run.join.keys import STORE_SECRET
from modules.training.worker import end_without_teardown, run_worker
from tests.environment import LAUNCHER_VARIABLES
from tests.ports import first_port, free_port

ROOT = Path(__file__).resolve().parents[1]
TINY = str(ROOT / "tests" / "tiny_family.py")


LATER_VERSIONS = ("before_0_2", "version_0_2", "version_0_3")  # in tests/fixtures, of the same make.py


def copy_of_version(version: str, folder: Path) -> None:
    """Copy the files of one of `LATER_VERSIONS`, with the images and base model of version_0_1, to a new folder."""
    fixtures = ROOT / "tests" / "fixtures"
    shutil.copytree(fixtures / version, folder)
    for name in ("images", "tiny_sd"):
        shutil.copytree(fixtures / "version_0_1" / name, folder / name, dirs_exist_ok=True)
    for file in folder.rglob("*.json*"):
        if "/FIXTURE" in (text := file.read_text()):
            file.write_text(text.replace("/FIXTURE", folder.as_posix()))


def tiny_config(images: Path, place: Path, **settings: object) -> TrainConfig:
    """A run of six steps of the tiny family; `place` gets runs/ and cache/. family_options may be given, too."""
    data: dict[str, object] = {
        "family": TINY,
        "concepts": [{"path": str(images)}],
        "resolution": 16,
        "cache_dir": str(place / "cache"),
        "runs_dir": str(place / "runs"),
        "run_name": "x",
        "loader_workers": 0,
        "pin_memory": False,
        "max_steps": 6,
        "epochs": 100,
        "batch_size": 4,
        "global_batch_size": 8,
        "learning_rate": 0.01,
        "tensorboard": False,
        "backup_every": "never",
        "initial_port": first_port(),
    }
    return TrainConfig.model_validate({**data, **settings})


def group_settings(world_size: int, port: int | None = None) -> dict[str, object]:
    """The settings that ask for `world_size` processes."""
    chosen = {} if port is None else {"initial_port": port}
    return {"enable_multi_gpu": True, "world_size": world_size, "training_mode": "distributed", **chosen}


@dataclass(frozen=True)
class Run:
    """The results of a run."""

    folder: RunFolder

    def events(self, kind: str | None = None) -> list[Event]:
        """All events, or those of one type."""
        return [event for event in read_events(self.folder.events_file) if kind in (None, event["type"])]

    def failure(self, rank: int) -> str:
        """The recorded failure of a rank; empty if there is none."""
        file = self.folder.failure_file(rank)
        return str(json.loads(file.read_text())["message"]) if file.exists() else ""

    @property
    def losses(self) -> list[float]:
        """The loss of every step; nan where it was not finite."""
        losses = [cast("float | None", event["loss"]) for event in self.events("step")]
        return [math.nan if loss is None else loss for loss in losses]

    @property
    def state(self) -> TrainingState:
        """The newest backup."""
        newest, _ = Backups(self.folder.backup_dir, keep=1).newest_valid()
        assert newest is not None, f"no valid backup in {self.folder.backup_dir}"
        return read_backup(newest)

    @property
    def warnings(self) -> str:
        """All warnings, one a line."""
        return "\n".join(str(event["message"]) for event in self.events("warning"))

    @property
    def exit_code(self) -> object:
        """What the last event says."""
        last = self.events()[-1]
        assert last["type"] == "finished", last
        return last["exit_code"]


def train_alone(config: TrainConfig, resume: str | None = None) -> tuple[int, Run]:
    """Train in this process; the exit code and the run."""
    folder = opened(config, resume)
    return run_worker(config, folder, resume=resume), Run(folder)


@dataclass(frozen=True)
class Job:
    """One run of a group."""

    config: TrainConfig
    resume: str | None = None


def train_group(
    world_size: int, jobs: Mapping[str, Job], afterwards: Callable[[RankEnv], None] | None = None, machines: int = 1
) -> dict[str, Run]:
    """Train one job after the other in the same `world_size` real processes (starting them is what takes time).

    They call `afterwards` at the end, with a free port. Of several `machines` each has as many of them, in the words of
    torchrun.
    """
    folders = {name: opened(job.config, job.resume).path for name, job in jobs.items()}
    ports = [free_port() for _ in range(len(jobs) + 1)]
    per_machine = world_size // machines
    given = list(jobs.values()), list(folders.values()), ports, afterwards, per_machine
    in_ranks(_train_all, world_size, ports[-1], given)
    return {name: Run(RunFolder(folder)) for name, folder in folders.items()}


def in_ranks(function: Callable[..., None], world_size: int, port: int, arguments: tuple[object, ...]) -> None:
    """Call `function(rank_env, *arguments)` in `world_size` real processes. They are forked from a server that has
    imported what they need, which takes seconds for each otherwise."""
    multiprocessing.set_forkserver_preload(["tests.runs", "torch._dynamo", "peft"])
    given = dict(os.environ), function, arguments
    spawn(_as_started_here, world_size, port, given, start_method="forkserver" if sys.platform == "linux" else "spawn")


def _as_started_here(
    rank_env: RankEnv, environ: Mapping[str, str], function: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    """With the environment of the process that asks for the rank, and not that of the server."""
    of_rank = {*rank_env.environment(), LAUNCHER_STORE_VARIABLE, STORE_SECRET, "OMP_NUM_THREADS"}
    for name in {*os.environ} - {*environ} - of_rank:
        del os.environ[name]
    os.environ.update({name: value for name, value in environ.items() if name not in of_rank})
    multiprocessing.set_start_method("spawn", force=True)  # of its loader workers, as in ranks that Tandem starts
    function(rank_env, *arguments)


def opened(config: TrainConfig, resume: str | None = None) -> RunFolder:
    """A new run folder, or the existing one of a resumed run."""
    existing = RunFolder(Path(config.runs_dir) / str(config.run_name))
    return existing if resume is not None and existing.path.exists() else RunFolder.create(config)


def group_exit_codes(run: Run, world_size: int) -> list[int]:
    """What `run_worker` returned on each rank of `train_group`."""
    return [int((run.folder.log_dir / f"exit-{rank}").read_text()) for rank in range(world_size)]


def group_on_a_gpu() -> Group:
    """For what is refused on a CPU and needs no other rank: a group that looks like one of GPUs."""
    rank_env = RankEnv(0, 0, 1, "127.0.0.1", 1)
    store: Any = dist.HashStore()
    return Group(rank_env, "nccl", torch.device("cuda", 0), store, cast(dist.ProcessGroup, None), ())


def _train_all(
    rank_env: RankEnv,
    jobs: list[Job],
    folders: list[Path],
    ports: list[int],
    afterwards: Callable[[RankEnv], None] | None,
    per_machine: int,
) -> None:
    os.environ["GROUP_RANK"] = str(rank_env.rank // per_machine)
    torch.set_num_threads(1)
    for job, path, port in zip(jobs, folders, ports, strict=False):
        code = run_worker(job.config, RunFolder(path), replace(rank_env, master_port=port), resume=job.resume)
        (path / "log" / f"exit-{rank_env.rank}").write_text(str(code))
    if afterwards is not None:
        afterwards(rank_env)
    end_without_teardown(0)


@dataclass(frozen=True)
class Computed:
    """What one rank computed: every sample with its random numbers, and the sum of the weights at each call."""

    samples: list[tuple[float, ...]]
    weights: list[float]


def recorded(folder: Path, rank: int, *, skip_first_call: bool) -> Computed:
    """Read the record of a tiny family; a group's first call is the DDP warm-up."""
    lines = [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]
    kept = [line for line in lines if not (skip_first_call and line[0] == 1)]
    samples = [tuple(sample) for _, counts, _, *sample in kept if counts]
    return Computed(samples, list(dict.fromkeys(line[2] for line in kept)))


def same_tensors(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Whether both hold the same names and the same bits."""
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def same_state(first: TrainingState, second: TrainingState) -> bool:
    """Whether weights, average and optimizer are the same to the last bit."""
    return (
        same_tensors(first.weights, second.weights)
        and (first.ema is None) == (second.ema is None)
        and same_tensors(first.ema or {}, second.ema or {})
        and same_tensors(first.optimizer.tensors, second.optimizer.tensors)
        and first.optimizer.values == second.optimizer.values
    )


def hashes(folder: Path) -> dict[str, str]:
    """The content of all files in a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def environment(**more: str) -> dict[str, str]:
    """This process's environment without the variables of a launcher."""
    plain = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    return {**plain, "OMP_NUM_THREADS": "1", **more}


def train_command(config: TrainConfig, file: Path, *flags: str) -> list[str]:
    """The command that trains `config`, which is written to `file`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_config(config, file)
    return [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(file), *flags]


def run_command(argv: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=200, check=False, env=environment(**variables), cwd=ROOT
    )


def assert_error_message(done: subprocess.CompletedProcess[str], exit_code: int, *parts: str) -> None:
    """The command failed with this exit code and these texts, and without a traceback."""
    output = done.stdout + done.stderr
    assert done.returncode == exit_code, output
    assert "Traceback" not in output.replace("Full traceback:", ""), output
    for part in parts:
        assert part in output, output
