"""Metrics of the steps under way: they stay on the device, are summed over the ranks and read a sync later."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from modules.data.loading.progress import Progress
from modules.distributed import HostCopy
from modules.monitoring import StepRecord
from modules.training.step.model_flops import ModelFlops
from modules.training.step.phases import PHASES, Phase, StepPhases, TimePoint

# Per rank and step: seconds in all and of each phase; seconds before the all-reduce of the gradients, which ends at
# the same time on all ranks; samples; memory that torch has allocated and reserved on a GPU, and the most that it had
# allocated as a share of the most that it had reserved;
# floating-point operations of the step, and the most that the device can do in a second.
_MEMORY = ("allocated_mib", "reserved_mib", "memory_efficiency")
_FLOPS = ("model_flops", "peak_flops")
RANK_METRICS = ("step_s", *(f"{phase}_s" for phase in PHASES), "own_s", "samples", *_MEMORY, *_FLOPS)
SAMPLES_AT_ONCE = "samples_at_once"  # how many samples fit into a rank's memory
UNREADABLE = "unreadable"  # images that were found to be so since the last sync

# Ranks sync this often, however fast their steps are: a sync costs some 0.3 ms on a CPU.
SYNC_EVERY_S = 0.2
MAX_STEPS_PER_SYNC = 8
LOSSES = tuple(f"loss/{number}" for number in range(MAX_STEPS_PER_SYNC))
NORMS = tuple(f"norm/{number}" for number in range(MAX_STEPS_PER_SYNC))  # mean squares, if the norms differ
OUT_OF_MEMORY = tuple(f"out_of_memory/{number}" for number in range(MAX_STEPS_PER_SYNC))  # on how many ranks


def metric_names(requests: Iterable[str], world_size: int) -> list[str]:
    """Everything that is summed over the ranks at a sync: requests, losses, and each rank's own metrics."""
    per_rank = (f"{name}/{rank}" for name in (*RANK_METRICS, SAMPLES_AT_ONCE) for rank in range(world_size))
    return [*requests, *LOSSES, *NORMS, *OUT_OF_MEMORY, UNREADABLE, *per_rank]


@dataclass(frozen=True)
class _Step:
    progress: Progress
    learning_rate: float
    loss_and_norm: HostCopy  # this rank's part of the step's mean loss, and the gradient norm
    seconds: float
    samples: int
    phases: StepPhases
    gradient_sync: TimePoint  # when the reduction over the ranks started
    out_of_memory: bool  # on this rank

    def rank_metrics(self) -> dict[str, float]:
        """RANK_METRICS of this step, without the memory."""
        phases = {f"{phase}_s": seconds for phase, seconds in self.phases.by_phase().items()}
        own_s = self.phases.seconds(self.gradient_sync)
        return {"step_s": self.phases.seconds(), **phases, "own_s": own_s, "samples": float(self.samples)}


class StepMetrics:
    """Keeps each optimizer step until its metrics have been summed over all ranks.

    Steps are sent in groups, as many as take SYNC_EVERY_S on the slowest rank. All ranks find the same number, because
    they compute it from the sums.
    """

    def __init__(
        self,
        device: torch.device,
        rank: int,
        world_size: int,
        flops: ModelFlops | None = None,
        *,
        norms_differ: bool = False,
    ) -> None:
        """`norms_differ`: gradient norms are reported as their root mean square over the ranks."""
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        self._device = device
        self._rank = rank
        self._world_size = world_size
        self._flops = flops
        self._norms_differ = norms_differ
        self._steps_per_sync = 1
        self.steps_done = 0  # of the run, once a step is complete
        self._loss = self._zero
        self._unsent: deque[_Step] = deque()
        self._sent: list[_Step] = []
        self._finished: list[_Step] = []
        self.restart_clock()

    # Within a step

    def add_loss(self, loss: Tensor, samples: int) -> None:
        """A micro-batch's part of the step's mean loss, [], and its number of samples."""
        self._loss = self._loss + loss.detach()
        self._samples += samples

    def begin(self, phase: Phase) -> None:
        """From here on the step is in this phase."""
        self._phases.begin(phase)

    def begin_gradient_sync(self, loss: Tensor) -> None:
        """`backward` has begun, of `loss`, [], in which the ranks reduce their gradients and so wait for each other."""
        self._gradient_sync: TimePoint = self._phases.latest
        if self._world_size > 1:
            self._phases.begin_sync_after(loss)

    def end_step(
        self, progress: Progress, learning_rate: float, grad_norm: Tensor, *, out_of_memory: bool = False
    ) -> None:
        """The step that led to `progress` is complete; `grad_norm` is [], before clipping.

        `out_of_memory`: this rank made all ranks skip it.
        """
        end = self._phases.end()  # before the copy: once that has arrived, the GPU has passed all points of the step
        times = (end.at - self._started.at, self._samples, self._phases, self._gradient_sync, out_of_memory)
        self._unsent.append(_Step(progress, learning_rate, HostCopy(self._loss, grad_norm), *times))
        self.steps_done = progress.step
        self._loss = self._zero
        self.restart_clock(end)

    def restart_clock(self, start: TimePoint | None = None) -> None:
        """The next step starts here: time spent before (sampling, say) does not count for it."""
        self._samples = 0
        self._started = self._gradient_sync = start or TimePoint(self._device)
        self._phases = StepPhases(self._device, self._started)

    # Between steps

    @property
    def sync_is_due(self) -> bool:
        """True after the last step of a group, on all ranks at once."""
        return len(self._unsent) > self._steps_per_sync  # the newest step stays behind, see take_group

    @property
    def pending(self) -> bool:
        """True while a step's record is still to come."""
        return bool(self._unsent or self._sent)

    def take_group(self, *, flush: bool) -> dict[str, float]:
        """Take the next group of steps and return what to send of it.

        The newest step may still be computing and stays behind unless `flush`, so that nobody waits for the device.
        """
        count = min(len(self._unsent) - (0 if flush else 1), MAX_STEPS_PER_SYNC)
        self._finished, self._sent = self._sent, [self._unsent.popleft() for _ in range(count)]
        losses = {name: step.loss_and_norm.read()[0] for name, step in zip(LOSSES, self._sent, strict=False)}
        own = {f"{name}/{self._rank}": value for name, value in self._typical().items()}
        failed = {name: float(step.out_of_memory) for name, step in zip(OUT_OF_MEMORY, self._sent, strict=False)}
        return {**losses, **self._norms(), **failed, **own}

    def _norms(self) -> dict[str, float]:
        if not self._norms_differ:
            return {}
        norms = [step.loss_and_norm.read()[1] for step in self._sent]
        return {name: norm * norm / self._world_size for name, norm in zip(NORMS, norms, strict=False)}

    def _typical(self) -> dict[str, float]:
        """RANK_METRICS of the group: those of its step of median length, whose phases add up."""
        if not self._sent:
            return {}
        by_length = sorted(self._sent, key=lambda step: step.phases.seconds())
        typical = by_length[(len(by_length) - 1) // 2].rank_metrics()
        flops = {} if self._flops is None else self._flops.of_step(int(typical["samples"]))
        return {**typical, **_memory_mib(self._device), **flops}

    def skipped_for_memory(self, sums: Mapping[str, float]) -> int:
        """How many steps of the finished group this rank has skipped because memory ran out on a rank with which it
        averages its gradients: those in which its own norm is not finite."""
        slots = zip(OUT_OF_MEMORY, self._finished, strict=False)
        return sum(sums[ranks] > 0 and not math.isfinite(step.loss_and_norm.read()[1]) for ranks, step in slots)

    def finish_group(self, sums: Mapping[str, float]) -> list[StepRecord]:
        """The steps that were sent with the previous group; their sums also set how often to sync from now on."""
        if self._finished:
            slowest_s = max(sums[f"step_s/{rank}"] for rank in range(self._world_size))
            self._steps_per_sync = max(1, min(round(SYNC_EVERY_S / slowest_s), MAX_STEPS_PER_SYNC))
        slots = zip(LOSSES, NORMS, OUT_OF_MEMORY, self._finished, strict=False)
        return [
            _record(step, sums[loss], math.sqrt(sums[norm]) if self._norms_differ else None, failed=sums[ranks] > 0)
            for loss, norm, ranks, step in slots
        ]


def _memory_mib(device: torch.device) -> dict[str, float]:
    """What torch has allocated and reserved on a GPU; counters of the allocator, the device is not asked."""
    if device.type != "cuda":
        return {}
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    names = ("allocated_bytes", "reserved_bytes")
    allocated, reserved = (stats[name]["all"] for name in names)
    values = (allocated["current"] / 2**20, reserved["current"] / 2**20, allocated["peak"] / max(1, reserved["peak"]))
    return dict(zip(_MEMORY, values, strict=True))


def _record(step: _Step, loss: float, norm: float | None, *, failed: bool) -> StepRecord:
    """`norm` is None if it is that of this rank."""
    return StepRecord(
        step=step.progress.step,
        epoch=step.progress.epoch,
        samples_seen=step.progress.samples_seen,
        loss=math.nan if failed else loss,  # that of some of the samples
        learning_rate=step.learning_rate,
        grad_norm=step.loss_and_norm.read()[1] if norm is None else norm,
        seconds=step.seconds,
        out_of_memory=failed,
    )
