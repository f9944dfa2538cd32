"""Shares of the ranks by their speed: what `balance: auto` measures, and when it changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul
from statistics import median
from typing import Final

from modules.data.loading.shares import Shares, ShareTable, describe_shares, share_counts
from modules.monitoring import Report, StepRecord

GAIN: Final = 0.1  # shares change if steps become that much faster: measured speeds differ a little on any cards
WARM_UP: Final = 5  # steps after a start that are not measured
# A speed is the median over so many syncs, steps and seconds: a hiccup must not move samples.
WINDOW_SYNCS: Final = 5
WINDOW_STEPS: Final = 15
WINDOW_S: Final = 1.0
SMALLEST_WEIGHT: Final = 0.001  # of the fastest rank's


class LoadBalancer:
    """Gives each rank the share of a step with which all end together, as far as whole samples allow.

    A rank's speed is that of its forward and backward, in which it waits for no other. All ranks compute the same
    shares from the same sums, and use them from the same step on, which none has begun to read: `lead` steps later.
    """

    def __init__(self, shares: Shares, ranks: int, samples: int, lead: int, report: Report) -> None:
        """`samples` are those of a step on all ranks."""
        self._shares, self._ranks, self._samples, self._lead, self._report = shares, ranks, samples, lead, report
        self._valid_from = 0  # the step, counted from 0
        self._steps_to_skip = WARM_UP
        # shares that were in use already: their table, and the seconds per sample that each rank took with them
        self._known: dict[tuple[int, ...], tuple[ShareTable, Sequence[float]]] = {}
        self._restart()

    def follow(self, sums: Mapping[str, float], records: Sequence[StepRecord], steps_done: int) -> None:
        """Measure the `records`, of which `sums` are those of the ranks; called by all ranks after `steps_done`."""
        if records[0].step <= self._valid_from or any(record.out_of_memory for record in records):
            return
        if self._steps_to_skip > 0:
            self._steps_to_skip -= len(records)
            return
        times = [self._seconds_per_sample(sums, rank) for rank in range(self._ranks)]
        if min(times) <= 0:
            return
        self._times.append(times)
        self._steps += len(records)
        # from what all ranks know: each one's own clock would let them decide at different steps
        self._seconds += len(records) * max(sums[f"step_s/{rank}"] for rank in range(self._ranks))
        if len(self._times) >= WINDOW_SYNCS and self._steps >= WINDOW_STEPS and self._seconds >= WINDOW_S:
            self._change_if_faster([median(each) for each in zip(*self._times, strict=True)], steps_done)
            self._restart()

    def _restart(self) -> None:
        self._times: list[list[float]] = []  # seconds per sample of each rank, at each sync
        self._steps, self._seconds = 0, 0.0

    def _seconds_per_sample(self, sums: Mapping[str, float], rank: int) -> float:
        samples = sums[f"samples/{rank}"]
        return (sums[f"forward_s/{rank}"] + sums[f"backward_s/{rank}"]) / samples if samples else 0.0

    def _change_if_faster(self, times: Sequence[float], steps_done: int) -> None:
        """`times` are the seconds per sample of each rank."""
        now = share_counts(self._samples, self._ranks, self._shares.latest)
        if now in self._known and any(abs(t / b - 1) > GAIN for t, b in zip(times, self._known[now][1], strict=True)):
            self._known.clear()  # a rank has become faster or slower
        self._known[now] = self._shares.latest, times
        table = tuple(max(SMALLEST_WEIGHT, round(min(times) / each, 3)) for each in times)
        forecast = {share_counts(self._samples, self._ranks, table): (table, times)}
        # what was measured counts more: a rank may take longer per sample in other micro-batches
        choices = {**forecast, **self._known}
        seconds = {counts: max(map(mul, counts, choices[counts][1])) for counts in choices}
        best = min(choices, key=seconds.__getitem__)
        if (faster := seconds[now] / seconds[best]) <= 1 + GAIN:
            return
        table, _ = choices[best]
        self._valid_from = steps_done + self._lead
        self._shares.change(self._valid_from, table)
        speeds = ", ".join(f"{1 / each:.3g}" for each in times[:8]) + ", …" * (len(times) > 8)
        self._report.note(
            f"Load balancing: from step {self._valid_from + 1:,} on the ranks take "
            f"{describe_shares(self._samples, self._ranks, table)}. They compute {speeds} samples/s; steps become "
            f"about {faster:.2g} x as fast."
        )
