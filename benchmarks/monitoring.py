"""What monitoring costs: python benchmarks/monitoring.py [--blocks N] [--width N] [--resolution N]

One real training run in this process, whose blocks of steps take turns:

- on: phases of the step, each rank's times at every metric sync, rules, `ranks` events, readings of the machine.
- off, and off again: without them; the ratio of these two is the noise.
- accounted: on, with the CPU time of each of these calls, and of what logging a step takes (events.jsonl,
  TensorBoard, progress line), which no block leaves out.

The ratios are medians over the blocks, with the interval in which 95 % of those of resampled blocks are. CPU time
is that of all threads of the process. Readings are made by a thread every two seconds, which few blocks meet, so their
CPU time is measured on its own. The target: under 1 % in all.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks.side_by_side import MemoryLoader, Screen
from modules.config import TrainConfig
from modules.config.hyperparameters import hyperparameters
from modules.distributed.health.device_readings import READ_EVERY_S, HostReader
from modules.monitoring import PerformanceMonitor, RunReport
from modules.run import EventLog, RunFolder
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.state.requests import Outcome
from modules.training.worker import control_requests, join_ranks
from scripts.make_demo_data import make_demo_data

TARGET = 0.01
BLOCK = 24  # steps: three metric syncs of fast steps
MODES = ("on", "off", "off again", "accounted")
WARM_UP = 2  # blocks of each mode
RESAMPLED = 2000
CALIBRATION = 20_000  # empty calls


class Account:
    """Seconds of the calls of each kind, and their number."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def around(self, kind: str, call: Callable[..., Any], clock: Callable[[], float]) -> Callable[..., Any]:
        """`call`, whose time counts as `kind`; what a call inside of it takes is counted once."""

        def counted(*arguments: Any, **options: Any) -> Any:
            began = clock()
            found = call(*arguments, **options)
            self.seconds[kind] = self.seconds.get(kind, 0.0) + clock() - began
            self.calls[kind] = self.calls.get(kind, 0) + 1
            return found

        return counted

    def without_the_clock(self, kind: str) -> float:
        """The seconds of a kind, less what reading the clock takes, which may be more than the call itself."""
        empty = Account()
        call = empty.around(kind, lambda: None, time.thread_time)
        for _ in range(CALIBRATION):
            call()
        return max(0.0, self.seconds[kind] - self.calls[kind] * empty.seconds[kind] / CALIBRATION)


class Switch:
    """Turns the monitoring of a trainer off and on, and puts clocks around it."""

    def __init__(self, trainer: GenericTrainer, account: Account) -> None:
        self._metrics, self._report, self._account = trainer.metrics, trainer.report, account

    def set(self, mode: str) -> None:
        """One of MODES."""
        for owner in (self._metrics, self._report):
            for name in [name for name in vars(owner) if name in ("begin", "_typical", "ranks", "step")]:
                delattr(owner, name)
        if mode.startswith("off"):
            self._metrics.begin = lambda phase: None  # type: ignore[method-assign]
            self._metrics._typical = self._step_only  # type: ignore[method-assign]
            self._report.ranks = lambda times, readings, steps: None  # type: ignore[method-assign]
        elif mode == "accounted":
            for owner, name, kind in (
                (self._metrics, "begin", "points of the phases"),
                (self._metrics, "_typical", "times of a sync"),
                (self._report, "ranks", "rules and ranks events"),
                (self._report, "step", "logging of a step"),
            ):
                setattr(owner, name, self._account.around(kind, getattr(owner, name), time.thread_time))

    def _step_only(self) -> dict[str, float]:
        """What the metric sync itself needs: how long a step takes."""
        seconds = [step.seconds for step in self._metrics._sent]
        return {"step_s": statistics.median(seconds)} if seconds else {}


class Blocks:
    """Wall and CPU seconds per step of the blocks of each mode, which take turns in a random order."""

    def __init__(self, seed: int = 0) -> None:
        self.found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
        self._draw, self._left = random.Random(seed), list[str]()
        self.mode = ""
        self._steps = 0

    def next_mode(self) -> str:
        """Which block comes next; it starts now."""
        if not self._left:
            self._left = self._draw.sample(MODES, len(MODES))
        self.mode, self._steps = self._left.pop(), 0
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self.mode

    def step_is_done(self) -> bool:
        """Whether the block is over."""
        self._steps += 1
        if self._steps < BLOCK:
            return False
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.found[self.mode].append((wall / BLOCK, cpu / BLOCK))
        return True

    def of(self, mode: str, clock: int) -> list[float]:
        """Seconds per step of each block, by wall clock (0) or CPU time (1)."""
        return [block[clock] for block in self.found[mode][WARM_UP:]]


def main() -> None:
    """Train, and print what was found."""
    options = parser().parse_args()
    torch.set_num_threads(options.threads)
    blocks, account = Blocks(), Account()
    with tempfile.TemporaryDirectory(prefix="tandem-monitoring-") as place, reading_times(account):
        began = time.perf_counter()
        train(config_of(Path(place), options), blocks, account)
        seconds = time.perf_counter() - began
    sys.exit(0 if show(blocks, account, seconds) else 1)


def config_of(place: Path, options: argparse.Namespace) -> TrainConfig:
    """The demo with its logs, nothing else between the steps."""
    make_demo_data(place / "images", count=max(64, 4 * options.batch_size))
    return TrainConfig.model_validate(
        {
            "concepts": [{"path": str(place / "images")}],
            "resolution": options.resolution,
            "aspect_ratio_bucketing": False,
            "drop_last": True,
            "cache_dir": str(place / "cache"),
            "runs_dir": str(place / "runs"),
            "run_name": "monitored",
            "family_options": {"width": options.width},
            "batch_size": options.batch_size,
            "epochs": 1_000_000,
            "max_steps": BLOCK * len(MODES) * (options.blocks + WARM_UP) + 1,
            "loader_workers": 0,
        }
    )


def train(config: TrainConfig, blocks: Blocks, account: Account) -> None:
    """The real trainer from start to end, with its data in memory."""

    class SwitchedTrainer(GenericTrainer):
        def setup(self) -> None:
            super().setup()
            loader = self.components.data.loader
            kept = [batch.to(self.ranks.device) for batch in loader.epoch(0) if batch.is_last_of_step]
            self.components = replace(self.components, data=replace(self.components.data, loader=MemoryLoader(kept)))
            self.switch = Switch(self, account)

        def after_step(self) -> Outcome | None:
            outcome = super().after_step()
            if not blocks.mode or blocks.step_is_done():
                self.switch.set(blocks.next_mode())
            return outcome

    folder = RunFolder.create(config)
    report = RunReport(
        EventLog(folder.events_file),
        folder.tensorboard_dir,
        PerformanceMonitor(config.loader_workers),
        hyperparameters=hyperparameters(config, world_size=1),
    )
    with redirect_stdout(Screen()):
        with join_ranks(config, folder, report, None, None, supervised=True) as ranks:
            SwitchedTrainer(config, folder, report, control_requests(config, folder, 0), ranks).run()
        report.close()


@contextmanager
def reading_times(account: Account) -> Iterator[None]:
    """Counts the CPU time of the thread that reads the machine, in every block."""
    original = HostReader.read
    HostReader.read = account.around("readings", original, time.thread_time)  # type: ignore[method-assign]
    try:
        yield
    finally:
        HostReader.read = original  # type: ignore[method-assign]


def show(blocks: Blocks, account: Account, seconds: float) -> bool:
    """Print the figures; whether the target is met."""
    steps = BLOCK * len(blocks.found["accounted"])
    off = statistics.median(blocks.of("off", 1) + blocks.of("off again", 1))
    print(f"A step takes {1e3 * statistics.median(blocks.of('off', 0)):.2f} ms, {1e3 * off:.2f} ms of CPU time")
    print(f"{'in turns, against off':<34}{'wall':>9}{'95 % within':>18}{'CPU':>9}{'95 % within':>18}")
    for name, other in (("on", "off"), ("off again (noise)", "off")):
        cells = [ratio(blocks.of(name.partition(" (")[0], clock), blocks.of(other, clock)) for clock in (0, 1)]
        print(
            f"{name:<34}" + "".join(f"{middle:>+9.2%}{f'{low:+.2%} … {high:+.2%}':>18}" for middle, low, high in cells)
        )
    print(f"\n{'accounted':<34}{'µs a step':>12}{'of a step':>12}")
    total = 0.0
    for kind in account.seconds:
        if kind == "readings":
            continue
        spent = account.without_the_clock(kind)
        print(f"{kind:<34}{1e6 * spent / steps:>12.1f}{spent / steps / off:>12.2%}")
        total += spent / steps / off if kind != "logging of a step" else 0.0
    share = account.seconds["readings"] / seconds
    each = account.seconds["readings"] / account.calls["readings"]
    print(f"\nReadings: {1e3 * each:.2f} ms of CPU time every {READ_EVERY_S:g} s, {share:.2%} of a core")
    total += share
    print(f"Monitoring in all: {total:.2%} (target: under {TARGET:.0%})")
    return total < TARGET


def ratio(own: list[float], other: list[float]) -> tuple[float, float, float]:
    """Median of `own` over that of `other`, minus one, with the 95 % interval of resampled blocks (bootstrap)."""
    draw = random.Random(0)

    def once(first: list[float], second: list[float]) -> float:
        return statistics.median(first) / statistics.median(second) - 1

    found = sorted(once(draw.choices(own, k=len(own)), draw.choices(other, k=len(other))) for _ in range(RESAMPLED))
    return once(own, other), found[round(0.025 * RESAMPLED)], found[round(0.975 * RESAMPLED)]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument(
        "--blocks", type=int, default=60, help=f"blocks of {BLOCK} steps of each of the {len(MODES)} kinds"
    )
    top.add_argument("--width", type=int, default=8, help="of the demo's model")
    top.add_argument("--resolution", type=int, default=16)
    top.add_argument("--batch_size", type=int, default=4)
    top.add_argument("--threads", type=int, default=1)
    return top


if __name__ == "__main__":
    main()
