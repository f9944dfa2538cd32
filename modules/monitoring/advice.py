"""Warnings from the figures of the steps: a rank that all wait for, and a run that waits for its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# A judgement needs this many steps; the first few warm up and are left out.
WINDOW = 100
WARM_UP = 5
# Parts of a step that are worth a warning; less than 10 ms never is: telling what happens takes some, too.
LEAST_S = 0.01
LATE = 0.1
STARVED = 0.2
SLOWER = 1.25


@dataclass(frozen=True)
class RankFigures:
    """One rank's part of a step, or the median of a few.

    `step_s` is nearly equal on all ranks, because they wait for each other; what tells them apart is `own_s`, the time
    until the rank's gradients begin to wait for those of the others. `data_s` of it went by waiting for the loader.
    """

    rank: int
    host: str
    step_s: float
    data_s: float
    own_s: float
    samples: float


class Advice:
    """Looks at the figures of all steps and says each thing once."""

    def __init__(self, loader_workers: int) -> None:
        self._loader_workers = loader_workers
        self._looks: list[Sequence[RankFigures]] = []
        self._seen = -WARM_UP  # steps since the last judgement
        self._told: set[str] = set()

    def look(self, figures: Sequence[RankFigures], steps: int = 1) -> list[str]:
        """The warnings that these figures, of one step or the median of several `steps`, give cause for."""
        self._seen += steps
        if self._seen <= 0:
            return []
        self._looks.append(figures)
        if self._seen < WINDOW:
            return []
        typical = [typical_step(rank) for rank in zip(*self._looks, strict=True)]
        self._looks.clear()
        self._seen = 0
        found = {"straggler": straggler(typical), "starvation": starvation(typical, self._loader_workers)}
        news = {kind: text for kind, text in found.items() if text and kind not in self._told}
        self._told.update(news)
        return list(news.values())


def typical_step(steps: Sequence[RankFigures]) -> RankFigures:
    """The median of each figure over the steps of one rank."""
    names = ("step_s", "data_s", "own_s", "samples")
    middle = {name: median(getattr(step, name) for step in steps) for name in names}
    return RankFigures(steps[0].rank, steps[0].host, **middle)


def straggler(ranks: Sequence[RankFigures]) -> str:
    """The sentence about the rank that all others wait for; empty where there is none."""
    if len(ranks) < 2:
        return ""
    last = max(ranks, key=lambda each: each.own_s)
    others = [each for each in ranks if each is not last]
    usual = median(each.own_s for each in others)
    late_s = last.own_s - usual
    if late_s < max(LATE * last.step_s, LEAST_S) or last.own_s < SLOWER * usual:
        return ""
    who = f"Rank {last.rank} on {last.host} keeps the others waiting: {late_s:.2f} of the {last.step_s:.2f} s of a step"
    if last.data_s - median(each.data_s for each in others) > late_s / 2:
        return (
            f"{who}, because it waits {last.data_s:.2f} s for its pictures. Is the disk of {last.host} slower, or are "
            "its processors busy? Put cache_dir on a local disk, or raise loader_workers."
        )
    ratio = _s_per_sample(last) / median(_s_per_sample(each) for each in others)
    if ratio < SLOWER:
        return ""  # it has more samples, which the start-up report has told
    return (
        f"{who}. It needs {ratio:.1f} x as long as the others for a sample. Look on {last.host} for other programs on "
        "the GPU or the processors, for heat (nvidia-smi -q -d PERFORMANCE), and whether its GPU is a slower model; "
        "leave it out with device_ids if it stays so."
    )


def starvation(ranks: Sequence[RankFigures], loader_workers: int) -> str:
    """The sentence about waiting for the loader; empty where that is short."""
    shares = {each.rank: each.data_s / each.step_s for each in ranks if each.step_s > 0}
    if median(shares.values() or [0.0]) < STARVED or median(each.data_s for each in ranks) < LEAST_S:
        return ""
    hungriest = max(ranks, key=lambda each: shares.get(each.rank, 0.0))
    more = max(2, loader_workers * 2)
    return (
        f"The run waits for its pictures: {shares[hungriest.rank]:.0%} of each step on rank {hungriest.rank} "
        f"({hungriest.host}). Try loader_workers={more} (now {loader_workers}), a larger prefetch_factor, or a faster "
        "disk for cache_dir."
    )


def _s_per_sample(figures: RankFigures) -> float:
    return max(figures.own_s - figures.data_s, 1e-9) / max(figures.samples, 1.0)
