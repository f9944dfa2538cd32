"""Where the time of a step goes: consecutive points in the device's work, so that the phases add up to the step."""

from __future__ import annotations

import time
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from modules.torch_compat import after_backward

Phase: TypeAlias = Literal["logging", "data", "forward", "backward", "sync", "optimizer"]
# logging: what follows the previous step (metric sync, reports); data: waiting for the loader; sync: what is left of
# the all-reduce of the gradients once this rank has computed its own, and of the buffers
PHASES: Final[tuple[Phase, ...]] = ("logging", "data", "forward", "backward", "sync", "optimizer")


class TimePoint:
    """A point in a device's work. A GPU's is read once the GPU has passed it, so that nobody waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.at = time.perf_counter()  # on the host
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()

    def since(self, earlier: TimePoint) -> float:
        """Seconds between two points."""
        if self._event is None or earlier._event is None:
            return self.at - earlier.at
        return float(earlier._event.elapsed_time(self._event)) / 1000


class StepPhases:
    """The points at which one step went from a phase to the next. On a GPU a phase is what the GPU spends in it:

    the loader counts as far as the GPU is idle, not while it still computes what was queued.
    """

    def __init__(self, device: torch.device, start: TimePoint | None = None) -> None:
        """The step begins at `start`, or now, with the phase `logging`."""
        self._device = device
        self._marks: list[tuple[Phase, TimePoint]] = [("logging", start or TimePoint(device))]
        self._end: TimePoint | None = None

    def begin(self, phase: Phase) -> None:
        """From here on the step is in this phase, if it is not already."""
        if phase != self._marks[-1][0]:
            self._marks.append((phase, TimePoint(self._device)))

    @property
    def latest(self) -> TimePoint:
        """When the current phase began."""
        return self._marks[-1][1]

    def end(self) -> TimePoint:
        """The step ends here, which is where the next one starts."""
        self._end = TimePoint(self._device)
        return self._end

    def seconds(self, until: TimePoint | None = None) -> float:
        """From the start to `until`, by default the end."""
        last = until or self._end
        return 0.0 if last is None else last.since(self._marks[0][1])

    def by_phase(self) -> dict[Phase, float]:
        """The seconds of each phase, whose sum is `seconds()`."""
        found = dict.fromkeys(PHASES, 0.0)
        if self._end is not None:
            points = [point for _, point in self._marks[1:]] + [self._end]
            for (phase, point), following in zip(self._marks, points, strict=True):
                found[phase] += following.since(point)
        return found

    def begin_sync_after(self, loss: Tensor) -> None:
        """`loss`, [], is about to be differentiated: `sync` begins once its local gradients have been computed.

        DDP and FSDP wait for the reduction in callbacks at the end of the backward, which run in the order in which
        they were queued; this one is queued first.
        """

        def queue(gradient: Tensor) -> None:
            after_backward(lambda: self.begin("sync"))

        if loss.requires_grad:
            loss.register_hook(queue)
