"""The times of one rank in a step, as the ranks exchange them and as the `ranks` event holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median


@dataclass(frozen=True)
class RankStepTimes:
    """The times of one rank in a step, or their medians over several. The names are those of the `ranks` event.

    `step_s` is nearly equal on all ranks, because they wait for each other. `own_s` differs: the seconds until the
    rank's gradients start to wait for those of the others, `data_s` of which are spent waiting for the loader.
    """

    rank: int
    host: str
    step_s: float
    data_s: float
    own_s: float
    samples: float  # of this rank
    # phases of the step, which with data_s add up to step_s; see modules/training/step/phases.py
    logging_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    sync_s: float = 0.0
    optimizer_s: float = 0.0
    allocated_mib: float = 0.0  # by torch, on a GPU
    reserved_mib: float = 0.0
    memory_efficiency: float = 0.0  # peak of the one / peak of the other: the rest is cached and fragmented
    model_flops: float = 0.0  # of a step on this rank; 0 if they were not counted
    peak_flops: float = 0.0  # per second, as measured

    def event(self) -> dict[str, float | int | str]:
        """The fields in the `ranks` event: times rounded to microseconds, nothing that is not measured."""
        found = {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}
        del found["memory_efficiency"]
        if self.memory_efficiency:
            found["memory_efficiency_percent"] = round(100 * self.memory_efficiency, 1)
        if not self.reserved_mib:
            del found["allocated_mib"], found["reserved_mib"]
        del found["model_flops"], found["peak_flops"]
        if self.step_s > 0:
            if self.model_flops and self.peak_flops:
                per_s = self.model_flops / self.step_s
                found["model_tflops"] = float(f"{per_s / 1e12:.4g}")  # per second
                found["peak_percent"] = float(f"{100 * per_s / self.peak_flops:.4g}")
            found["samples_per_s"] = round(self.samples / self.step_s, 3)
        return found


def typical_step(steps: Sequence[RankStepTimes]) -> RankStepTimes:
    """The median of each time over the steps of one rank."""
    names = [each.name for each in fields(RankStepTimes) if each.name not in ("rank", "host")]
    medians = {name: median(getattr(step, name) for step in steps) for name in names}
    return RankStepTimes(steps[0].rank, steps[0].host, **medians)
