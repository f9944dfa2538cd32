"""Speed of backups: python benchmarks/backup.py [--part disk|stall] [--size MB] [--folder FOLDER]

- disk: a state of `--size` MB is written as a backup, flushed and read back, against plain writes and fsync of as many
  bytes in one file, and against the same with direct reading back, which is the traffic that a backup has; the three
  alternate, and the figures are the ratios of the medians of their speeds
- stall: a model that has a state of `--size` MB is trained, on the GPU if there is one, once without backups and with
  some in the background; the figures are how much longer the steps take in all from a backup's start to its end, and
  the longest time for which training stands still: the copy, and what the slowest step takes more than the others.
  Training on the CPU uses all cores but one, as training on a GPU leaves cores free; `--training_threads` sets another
  number. The thread's low priority makes a backup take long if training leaves it little
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import nn

from benchmarks.targets import Targets
from modules.checkpoint import Backups, OptimizerState, Position, TrainingState, pack_optimizer
from modules.checkpoint.verified_write import drop_from_cache
from modules.monitoring import SilentReport
from modules.training.backup.state_copy import StateCopy, size_of
from modules.training.backup.writer import BackupWriter

PLAIN, LOST = 0.8, 1.0  # the targets
ROUNDS = 5
WARM_UP_STEPS, STEPS = 3, 16
WIDTH = 2048
CHUNK = 4 << 20


@dataclass
class LastBackup(SilentReport):
    """When the last backup was complete."""

    at: float = 0.0

    def backup(self, *arguments: object, **options: object) -> None:
        self.at = time.perf_counter()


def main() -> None:
    top = argparse.ArgumentParser(description="Speed of backups.", allow_abbrev=False)
    top.add_argument("--part", choices=("disk", "stall"), help="only this one")
    top.add_argument("--size", type=int, default=1000, help="of the state, in MB")
    top.add_argument("--folder", help="on the disk to measure; default: the temporary folder")
    top.add_argument("--training_threads", type=int, default=0, help="of part stall on the CPU; default: cores - 1")
    options = top.parse_args()
    targets = Targets()
    with tempfile.TemporaryDirectory(prefix="tandem-backup-", dir=options.folder) as place:
        if options.part != "stall":
            disk(Path(place), options.size, targets)
        if options.part != "disk":
            torch.set_num_threads(options.training_threads or max(1, (os.cpu_count() or 1) - 1))
            stall(Path(place), options.size, targets)
    targets.end()


def disk(place: Path, size_mb: int, targets: Targets) -> None:
    """Print MB/s of plain writes, of writes that are read back, and of backups."""
    count = size_mb * 10**6 // (3 * 4 * WIDTH * WIDTH) + 1
    tensors = [{f"layer.{n}": torch.randn(WIDTH, WIDTH) for n in range(count)} for _ in range(3)]
    moments = {f"{name}/{kind}": t for kind, of in zip("ab", tensors[1:], strict=True) for name, t in of.items()}
    state = TrainingState(position(1), tensors[0], None, OptimizerState("AdamW", moments, {}, []), {})
    size = size_of(state)
    backups, speeds = Backups(place / "backup", keep=1), (list[float](), list[float](), list[float]())
    data = os.urandom(CHUNK)
    for _ in range(ROUNDS):
        back_up = partial(backups.write, state, "{}")
        works: tuple[Callable[[], object], ...] = (
            partial(plain, place, size, data),
            partial(plain, place, size, data, reads=True),
            back_up,
        )
        for speed, work in zip(speeds, works, strict=True):
            started = time.perf_counter()
            work()
            speed.append(size / 1e6 / (time.perf_counter() - started))
    written, both, backed_up = map(median, speeds)
    print(f"a state of {size / 1e6:.0f} MB, medians of {ROUNDS}:")
    print(f"  plain write and fsync        {written:7.0f} MB/s  ({_range(speeds[0])})")
    print(f"  the same, then read back     {both:7.0f} MB/s  ({_range(speeds[1])})")
    print(f"  backup, with reading back    {backed_up:7.0f} MB/s  ({_range(speeds[2])})")
    print(f"  ratio to plain writing       {backed_up / written:7.2f}")
    print(f"  ratio to the same traffic    {backed_up / both:7.2f}")
    targets.at_least("speed of a backup / of a plain write and fsync", backed_up / written, PLAIN)


def plain(place: Path, size: int, data: bytes, *, reads: bool = False) -> None:
    """Write `size` bytes and flush them; with `reads`, read them back past the system's cache."""
    file = place / "plain"
    with file.open("wb", buffering=0) as opened:
        for _ in range(size // len(data)):
            opened.write(data)
        opened.write(data[: size % len(data)])
        os.fsync(opened.fileno())
    if reads:
        read_back(file)


def read_back(file: Path) -> None:
    """By direct I/O, where the system has it, else from the disk by dropping the cache."""
    memory = mmap.mmap(-1, CHUNK)  # aligned, as direct I/O asks for
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    except OSError:
        descriptor = os.open(file, os.O_RDONLY)
    drop_from_cache(descriptor, 0, 0)
    with os.fdopen(descriptor, "rb", buffering=0) as opened:
        while opened.readinto(memory):
            pass


def _range(speeds: list[float]) -> str:
    return f"{min(speeds):.0f} to {max(speeds):.0f}"


class _Training:
    """A model that has a state of `size_mb` MB, on the GPU if there is one."""

    def __init__(self, size_mb: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        layers = size_mb * 10**6 // (3 * 4 * WIDTH * WIDTH) + 1
        self._model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).to(self.device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5, fused=True)
        self._batch = torch.randn(1024 if self.device.type == "cuda" else 96, WIDTH, device=self.device)

    def step(self) -> float:
        """Train one step; returns its seconds."""
        started = time.perf_counter()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def state(self, number: int) -> TrainingState:
        """What a backup of that step writes."""
        weights = {name: weight.detach() for name, weight in self._model.named_parameters()}
        names = {id(weight): name for name, weight in self._model.named_parameters()}
        return TrainingState(position(number), weights, None, pack_optimizer(self._optimizer, names), {})


def stall(place: Path, size_mb: int, targets: Targets) -> None:
    """Print what a backup in the background costs training."""
    training = _Training(size_mb)
    step, state, device = training.step, training.state, training.device.type
    alone = [step() for _ in range(WARM_UP_STEPS + STEPS)][WARM_UP_STEPS:]
    report = LastBackup()
    writer = BackupWriter(Backups(place / "stall", keep=1), report, merges=True)
    copy, copies, lost, pauses, seconds = StateCopy(), [], [], [], []
    copy.take(state(0))  # its memory is used again, as the writer's
    writer.submit(state(0), "{}")
    writer.wait()
    for number in range(1, ROUNDS + 1):
        started = time.perf_counter()
        copy.take(state(number))
        copies.append(time.perf_counter() - started)
        report.at, started, steps = 0.0, time.perf_counter(), list[float]()
        writer.submit(state(number), "{}")
        submitted = time.perf_counter()
        while not report.at:
            steps.append(step())
        elapsed = time.perf_counter() - started
        seconds.append(report.at - started)
        writer.wait()
        before, after = alone[-STEPS:], [step() for _ in range(STEPS)]
        lost.append(elapsed - len(steps) * fmean(before + after))
        pauses.append(submitted - started + max((each - median(alone) for each in steps), default=0.0))
        alone += after
    del copy
    gc.collect()
    started, used = time.perf_counter(), time.process_time()
    writer.write(state(ROUNDS + 1), "{}")
    foreground, used = time.perf_counter() - started, time.process_time() - used
    one, copied, cost = median(alone), median(copies), median(lost)
    threads = "" if device == "cuda" else f" ({torch.get_num_threads()} of {os.cpu_count()} cores)"
    size = size_of(state(0)) / 1e6
    print(f"\ntraining on {device}{threads}, a state of {size:.0f} MB, medians of {ROUNDS} backups:")
    print(f"  a step without a backup      {one * 1e3:7.0f} ms")
    print(f"  copy to host memory          {copied * 1e3:7.0f} ms")
    print(f"  training loses per backup    {cost * 1e3:7.0f} ms  ({min(lost) * 1e3:.0f} to {max(lost) * 1e3:.0f})")
    print(f"  the longest pause of these   {median(pauses) * 1e3:7.0f} ms")
    print(f"  copy and one step            {(copied + one) * 1e3:7.0f} ms: the limit")
    print(
        f"  a backup in the background   {median(seconds) * 1e3:7.0f} ms, in the foreground {foreground * 1e3:.0f} ms"
    )
    print(f"  processor time of a backup   {used * 1e3:7.0f} ms: hashing, copying, comparing, reading and writing")
    targets.at_most("training loses per backup / (copy and one step)", cost / (copied + one), LOST)


def position(step: int) -> Position:
    return Position(step, step, 0, 1000, 1, 1, 1.0, 1.0)


if __name__ == "__main__":
    main()
