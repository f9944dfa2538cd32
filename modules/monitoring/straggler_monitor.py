"""Warnings from step times: a straggler that the other ranks wait for, and training limited by data loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

WINDOW = 100  # steps between two checks
WARM_UP = 5  # steps at the start that are not counted
# Thresholds of a warning. Waits of less than 10 ms are never reported: logging itself takes some of that.
MIN_WAIT_S = 0.01
LATE_FRACTION = 0.1  # of a step
STARVED_FRACTION = 0.2  # of a step
SLOWDOWN = 1.25  # times the median of the other ranks


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
    # phases of the step, which with data_s add up to step_s; see modules/training/step_phases.py
    logging_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    sync_s: float = 0.0
    optimizer_s: float = 0.0
    allocated_mib: float = 0.0  # by torch, on a GPU
    reserved_mib: float = 0.0
    model_flops: float = 0.0  # of a step on this rank; 0 if they were not counted
    peak_flops: float = 0.0  # per second, as measured

    def event(self) -> dict[str, float | int | str]:
        """The fields in the `ranks` event: times rounded to microseconds, nothing that is not measured."""
        found = {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}
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


class StragglerMonitor:
    """Collects the step times of all ranks and warns of each problem once."""

    def __init__(self, loader_workers: int) -> None:
        self._loader_workers = loader_workers
        self._collected: list[Sequence[RankStepTimes]] = []
        self._steps = -WARM_UP  # since the last check
        self._warned: set[str] = set()

    def update(self, times: Sequence[RankStepTimes], steps: int = 1) -> list[str]:
        """Add the times of one step, or the medians over several `steps`; returns new warnings."""
        self._steps += steps
        if self._steps <= 0:
            return []
        self._collected.append(times)
        if self._steps < WINDOW:
            return []
        typical = [typical_step(rank) for rank in zip(*self._collected, strict=True)]
        self._collected.clear()
        self._steps = 0
        found = {
            "straggler": straggler_warning(typical),
            "starvation": starvation_warning(typical, self._loader_workers),
        }
        news = {kind: text for kind, text in found.items() if text and kind not in self._warned}
        self._warned.update(news)
        return list(news.values())


def typical_step(steps: Sequence[RankStepTimes]) -> RankStepTimes:
    """The median of each time over the steps of one rank."""
    names = ("step_s", "data_s", "own_s", "samples")
    medians = {name: median(getattr(step, name) for step in steps) for name in names}
    return RankStepTimes(steps[0].rank, steps[0].host, **medians)


def straggler_warning(ranks: Sequence[RankStepTimes]) -> str:
    """A warning about the rank that all others wait for; empty if there is none."""
    if len(ranks) < 2:
        return ""
    slowest = max(ranks, key=lambda each: each.own_s)
    others = [each for each in ranks if each is not slowest]
    usual_s = median(each.own_s for each in others)
    late_s = slowest.own_s - usual_s
    if late_s < max(LATE_FRACTION * slowest.step_s, MIN_WAIT_S) or slowest.own_s < SLOWDOWN * usual_s:
        return ""
    host = slowest.host
    delay = f"the others wait {late_s:.2f} s of each {slowest.step_s:.2f} s step"
    who = f"Rank {slowest.rank} on {host} is a straggler: {delay}"
    if slowest.data_s - median(each.data_s for each in others) > late_s / 2:
        return (
            f"{who}, because its loader takes {slowest.data_s:.2f} s to deliver images. Is the disk of {host} slower, "
            "or are its CPUs busy? Put cache_dir on a local disk, or raise loader_workers."
        )
    ratio = _s_per_sample(slowest) / median(_s_per_sample(each) for each in others)
    if ratio < SLOWDOWN:
        return ""  # it has more samples, which the start-up report shows
    return (
        f"{who}. It takes {ratio:.1f} x as long as the others per sample. Check {host} for other programs on the GPU "
        "or CPU, for thermal throttling (nvidia-smi -q -d PERFORMANCE), and for a slower GPU model; if nothing helps, "
        "leave it out with device_ids."
    )


def starvation_warning(ranks: Sequence[RankStepTimes], loader_workers: int) -> str:
    """A warning about waiting for the loader; empty if the wait is short."""
    fractions = {each.rank: each.data_s / each.step_s for each in ranks if each.step_s > 0}
    if median(fractions.values() or [0.0]) < STARVED_FRACTION or median(each.data_s for each in ranks) < MIN_WAIT_S:
        return ""
    worst = max(ranks, key=lambda each: fractions.get(each.rank, 0.0))
    more = max(2, loader_workers * 2)
    return (
        f"Training is limited by data loading: {fractions[worst.rank]:.0%} of each step on rank {worst.rank} "
        f"({worst.host}) is spent waiting for samples. Try loader_workers={more} (now {loader_workers}), a larger "
        "prefetch_factor, or a faster disk for the data or cache_dir."
    )


def _s_per_sample(times: RankStepTimes) -> float:
    return max(times.own_s - times.data_s, 1e-9) / max(times.samples, 1.0)
