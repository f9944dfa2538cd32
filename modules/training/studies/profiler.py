"""Profiles a few steps with PyTorch's profiler: a trace of each rank, and the operations that take longest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.autograd.profiler_util import EventList
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from modules.config import TrainConfig
from modules.files import printable
from modules.monitoring import Report
from modules.run import RunFolder

STEPS_BEFORE: Final = 3  # not recorded: memory is allocated and algorithms are chosen in them
MOST_OPERATIONS: Final = 10
_NAME_WIDTH: Final = 44  # characters


@dataclass(frozen=True)
class Operation:
    """An operation of the recorded steps: its own time, without what it calls, and its calls, per step."""

    name: str
    milliseconds: float  # per step
    share: float  # of the time of all operations
    calls: float


@contextmanager
def profiled(config: TrainConfig, folder: RunFolder, rank: int, report: Report) -> Iterator[None]:
    """Record `profile_steps` optimizer steps of what runs inside, after the first three; does nothing if it is 0.

    The trace is written to profile/rank-N.json.gz in the run folder, in the format of chrome://tracing, which Perfetto
    (ui.perfetto.dev) opens.
    """
    with nullcontext() if not config.profile_steps else _Recording(config.profile_steps, folder, rank, report):
        yield


class _Recording:
    """Counts optimizer steps by a hook, so that the training loop knows nothing of it."""

    def __init__(self, steps: int, folder: RunFolder, rank: int, report: Report) -> None:
        self._wanted = steps
        self._file = folder.path / "profile" / f"rank-{rank}.json.gz"
        self._rank = rank
        self._report = report
        self._steps = 0  # since the start
        self._profile: profile | None = None
        self._has_recorded = False

    def __enter__(self) -> None:
        self._hook = register_optimizer_step_post_hook(self._after_step)

    def __exit__(self, *error: object) -> None:
        self._hook.remove()
        if self._profile is not None:  # the run ended early
            self._finish()
        elif not self._has_recorded and error[0] is None:
            self._report.warning(f"Nothing was profiled: the run had no more than {STEPS_BEFORE} steps.")

    def _after_step(self, *arguments: object) -> None:
        self._steps += 1
        if self._steps == STEPS_BEFORE:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, acc_events=True)
            self._profile.start()
        elif self._steps == STEPS_BEFORE + self._wanted:
            self._finish()

    def _finish(self) -> None:
        recorded, self._profile = self._profile, None
        assert recorded is not None, "it was started"
        self._has_recorded = True
        recorded.stop()
        steps = min(self._wanted, self._steps - STEPS_BEFORE)
        if not steps:
            return
        operations = costliest(recorded.key_averages(), steps)
        try:
            self._file.parent.mkdir(exist_ok=True)
            recorded.export_chrome_trace(str(self._file))
        except (OSError, RuntimeError) as problem:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
            self._report.warning(f"The profile could not be written to {self._file}: {problem}")
        if self._rank == 0:
            for line in _lines(operations, steps, str(self._file.parent)):
                self._report.note(line)


def costliest(averages: EventList, steps: int) -> list[Operation]:
    """The operations with the most time of their own, on the GPU if there is one, the longest first."""
    own_us: dict[str, tuple[float, int]] = {}
    on_gpu = torch.cuda.is_available()
    events: list[Any] = list(averages)
    for event in events:
        own = float(event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        if own > 0:
            own_us[event.key] = own, event.count
    whole = sum(own for own, _ in own_us.values())
    first = sorted(own_us.items(), key=lambda item: item[1][0], reverse=True)[:MOST_OPERATIONS]
    return [
        Operation(name, own / 1000 / steps, own / whole if whole else 0.0, count / steps)
        for name, (own, count) in first
    ]


def _lines(operations: list[Operation], steps: int, folder: str) -> list[str]:
    count = "one step" if steps == 1 else f"{steps} steps"
    head = f"Profile of {count}: the trace of each rank is in {folder}, for ui.perfetto.dev. On rank 0 took longest:"
    rows = [
        f"  {printable(each.name, _NAME_WIDTH):<{_NAME_WIDTH}} {each.milliseconds:>9.2f} ms {each.share:>6.1%} "
        f"{each.calls:>8.0f} calls"
        for each in operations
    ]
    return [head, f"  {'operation':<{_NAME_WIDTH}}    per step  share", *rows]
