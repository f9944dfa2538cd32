"""A summary of the dataset, logged before training starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from modules.data.index.index import Index
from modules.data.loading.loader import Examples
from modules.data.loading.order import Order
from modules.data.missing import CAPTION_SUFFIXES
from modules.files import printable

_WIDTH = 30  # characters
_SHOWN_BUCKETS = 20


@dataclass(frozen=True)
class DatasetSummary:
    """Images, buckets and steps of a run."""

    images: int  # to train on
    validation_images: int  # for validation and test
    buckets: dict[str, int]  # "WxH" -> training images in it, largest first
    effective_batch: int
    epoch_size: int  # samples per epoch, repeats counted
    steps_per_epoch: int
    problems: int
    masks: int = 0  # training images that have one
    passed_over: dict[str, int] = field(default_factory=dict)  # suffix -> files without image or caption

    def lines(self) -> list[str]:
        """The summary as text for the terminal, with a histogram of the buckets."""
        images = f"{self.images:,} image{'s' * (self.images != 1)}"
        validation = f", {self.validation_images:,} more for validation and test" if self.validation_images else ""
        problems = (
            f", {self.problems:,} problem{'s' * (self.problems != 1)} (see problems.txt)" if self.problems else ""
        )
        steps = f"{self.steps_per_epoch:,} step{'s' * (self.steps_per_epoch != 1)} per epoch"
        samples = f"{self.epoch_size:,} sample{'s' * (self.epoch_size != 1)}, {self.effective_batch:,} per step"
        masks = f", {self.masks:,} with a mask" if self.masks else ""
        others = ", ".join(f"{count:,} {suffix or 'without suffix'}" for suffix, count in self.passed_over.items())
        return [
            f"{images}{masks}{validation}{problems}",
            *([f"Passed over, being no images that Tandem reads: {printable(others, 300)}"] if others else []),
            f"{steps}: {samples}",
            *self._histogram(),
        ]

    def _histogram(self) -> list[str]:
        highest = max(self.buckets.values(), default=1)
        shown = list(self.buckets.items())[:_SHOWN_BUCKETS]
        lines = [
            f"  {name:>11}  {'#' * max(1, count * _WIDTH // highest):<{_WIDTH}} {count:,}" for name, count in shown
        ]
        rest = list(self.buckets.values())[_SHOWN_BUCKETS:]
        return [*lines, f"  and {len(rest):,} more sizes with {sum(rest):,} images"] if rest else lines


def summarize_dataset(
    index: Index, examples: Examples, order: Order, captions: Collection[str] = CAPTION_SUFFIXES
) -> DatasetSummary:
    """The summary of a run's dataset; files with the suffixes `captions` are not passed over."""
    training = examples.usable & ~index.validation
    names, counts = np.unique(index.bucket[training], return_counts=True)
    others = sum((Counter(found) for found in index.header.other_files), Counter[str]())
    for suffix in [each for each in others if each in captions or " " in each or each == "unreadable"]:
        del others[suffix]
    found = sorted(zip(counts.tolist(), names.tolist(), strict=True), reverse=True)
    return DatasetSummary(
        images=int(training.sum()),
        validation_images=int((examples.usable & index.validation).sum()),
        buckets={str(index.buckets[name]): count for count, name in found},
        effective_batch=order.global_batch_size,
        epoch_size=order.epoch_size,
        steps_per_epoch=order.steps_per_epoch,
        problems=len(index.problems()) + len(examples.problems),
        masks=int((training & (index.mask_file[:, 0] >= 0)).sum()),
        passed_over=dict(others.most_common()),
    )
