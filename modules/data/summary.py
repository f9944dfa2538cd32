"""A summary of the dataset, logged before training starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modules.config import Concept
from modules.data.index.concept_summary import ConceptSummary, count_of, summarize_concepts
from modules.data.index.index import TRANSPARENT, Index
from modules.data.loading.loader import Examples
from modules.data.loading.order import Order

_WIDTH = 30  # characters
_SHOWN_BUCKETS = 20
_SHOWN_CONCEPTS = 12


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
    own_masks: int = 0  # of these, those whose mask is their transparency
    concepts: tuple[ConceptSummary, ...] = ()

    def lines(self) -> list[str]:
        """The summary as text for the terminal, with a histogram of the buckets."""
        validation = f", {self.validation_images:,} more for validation and test" if self.validation_images else ""
        problems = f", {count_of(self.problems, 'problem')} (see problems.txt)" if self.problems else ""
        steps = f"{count_of(self.steps_per_epoch, 'step')} per epoch"
        samples = f"{count_of(self.epoch_size, 'sample')}, {self.effective_batch:,} per step"
        own = f", {self.own_masks:,} of them from transparency" if self.own_masks else ""
        masks = f", {self.masks:,} with a mask{own}" if self.masks else ""
        has_videos = any(each.videos for each in self.concepts)
        images = f"{self.images:,} images and videos" if has_videos else count_of(self.images, "image")
        return [
            f"{images}{masks}{validation}{problems}",
            *concept_lines(self.concepts),
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


def concept_lines(concepts: Sequence[ConceptSummary]) -> list[str]:
    """The summaries of the first concepts as text."""
    more = len(concepts) - _SHOWN_CONCEPTS
    lines = [line for summary in concepts[:_SHOWN_CONCEPTS] for line in summary.lines()]
    return [*lines, f"and {count_of(more, 'more concept')}"] if more > 0 else lines


def summarize_dataset(
    index: Index,
    examples: Examples,
    order: Order,
    concepts: tuple[Concept, ...] = (),
    *,
    uses_masks: bool = False,
) -> DatasetSummary:
    """The summary of a run's dataset, and of each of its concepts."""
    training = examples.usable & ~index.validation
    masks = training & (index.mask_file[:, 0] >= 0)
    names, counts = np.unique(index.bucket[training], return_counts=True)
    found = sorted(zip(counts.tolist(), names.tolist(), strict=True), reverse=True)
    return DatasetSummary(
        images=int(training.sum()),
        validation_images=int((examples.usable & index.validation).sum()),
        buckets={str(index.buckets[name]): count for count, name in found},
        effective_batch=order.global_batch_size,
        epoch_size=order.epoch_size,
        steps_per_epoch=order.steps_per_epoch,
        problems=len(index.problems()) + len(examples.problems),
        masks=int(masks.sum()),
        own_masks=int((masks & (index.transparency == TRANSPARENT)).sum()),
        concepts=tuple(summarize_concepts(concepts, index, uses_masks=uses_masks)),
    )
