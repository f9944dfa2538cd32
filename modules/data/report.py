"""What a run is about to train on, in lines for a person to read before it starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modules.data.index import Index
from modules.data.order import Order
from modules.data.reading import CachedExamples

_BAR = 30
_SHOWN_BUCKETS = 20


@dataclass(frozen=True)
class DataReport:
    """Pictures, buckets and steps of a run."""

    pictures: int  # to learn from
    validation_pictures: int  # and those for the test
    buckets: dict[str, int]  # "WxH" -> training pictures in it, largest first
    effective_batch: int
    epoch_size: int  # samples per epoch, repeats counted
    steps_per_epoch: int
    problems: int

    def lines(self) -> list[str]:
        """The report as text for the terminal, with a histogram of the buckets."""
        pictures = f"{self.pictures} picture{'s' * (self.pictures != 1)}"
        validation = f", {self.validation_pictures} more for validation and test" if self.validation_pictures else ""
        problems = f", {self.problems} problems (see problems.txt)" if self.problems else ""
        steps = f"{self.steps_per_epoch} step{'s' * (self.steps_per_epoch != 1)} per epoch"
        samples = f"{self.epoch_size} sample{'s' * (self.epoch_size != 1)}, {self.effective_batch} at a time"
        return [f"{pictures}{validation}{problems}", f"{steps}: {samples}", *self._histogram()]

    def _histogram(self) -> list[str]:
        highest = max(self.buckets.values(), default=1)
        shown = list(self.buckets.items())[:_SHOWN_BUCKETS]
        lines = [f"  {name:>11}  {'#' * max(1, count * _BAR // highest):<{_BAR}} {count}" for name, count in shown]
        rest = list(self.buckets.values())[_SHOWN_BUCKETS:]
        return [*lines, f"  and {len(rest)} more sizes with {sum(rest)} pictures"] if rest else lines


def data_report(index: Index, cached: CachedExamples, order: Order) -> DataReport:
    """The report of a run (`Order.of` has refused those of 0 steps)."""
    training = cached.usable & ~index.validation
    names, counts = np.unique(index.bucket[training], return_counts=True)
    found = sorted(zip(counts.tolist(), names.tolist(), strict=True), reverse=True)
    return DataReport(
        pictures=int(training.sum()),
        validation_pictures=int((cached.usable & index.validation).sum()),
        buckets={str(index.buckets[name]): count for count, name in found},
        effective_batch=order.global_batch_size,
        epoch_size=order.epoch_size,
        steps_per_epoch=order.steps_per_epoch,
        problems=len(index.problems()) + len(cached.problems),
    )
