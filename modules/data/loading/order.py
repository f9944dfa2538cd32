"""The global order: which samples each optimizer step takes, a pure function of seed, epoch, index and global batch
size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept, DataError
from modules.config.sections.data import DataSettings
from modules.data.index.index import Index
from modules.data.rng import UInt64Array, hash_uint64

# One number per use of the seed, so that no two of them share hashes.
_ROWS, _SAMPLES, _BUCKETS, _STEPS, _FRACTION, _VALIDATION, _ITEMS = range(1, 8)
_POSITIVE = np.uint64((1 << 63) - 1)  # seeds travel in int64 tensors


@dataclass(frozen=True)
class StepSamples:
    """The samples of one optimizer step over all ranks: three arrays [samples]."""

    rows: NDArray[np.int64]  # of the index
    seeds: NDArray[np.int64]
    weights: NDArray[np.float64]  # of the loss, above 0

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class TrainingRows:
    """The images to order: three arrays [images], and two sequences [concepts]."""

    rows: NDArray[np.int64]  # of the index, ascending
    bucket: NDArray[np.int32]
    concept: NDArray[np.int32]
    repeats: Sequence[float]
    loss_weight: Sequence[float]


class Order:
    """The order of every epoch.

    Each bucket is shuffled and divided into steps of `global_batch_size` samples. The remainders of all buckets are
    pooled, bucket by bucket, and divided into mixed steps. So each sample comes exactly once per epoch, and at most the
    last step has fewer samples; `drop_last` leaves it out.
    """

    def __init__(self, training: TrainingRows, seed: int, global_batch_size: int, drop_last: bool = False) -> None:
        self.global_batch_size = global_batch_size
        self._training = training
        self._seed = seed
        self.samples_per_epoch = sum(_concept_samples(training, n) for n in np.unique(training.concept).tolist())
        whole_steps = self.samples_per_epoch // global_batch_size * global_batch_size
        self.epoch_size = whole_steps if drop_last else self.samples_per_epoch
        self._weights = np.array(training.loss_weight, dtype=np.float64)
        self._concept_of_row = np.zeros(int(training.rows.max(initial=-1)) + 1, dtype=np.int32)
        self._concept_of_row[training.rows] = training.concept
        self._cached: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, dtype=np.int64))

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in each epoch."""
        return -(-self.epoch_size // self.global_batch_size)

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """int64 [epoch_size]: the index rows of an epoch, `global_batch_size` of them for each step."""
        if self._cached[0] != epoch:
            self._cached = (epoch, self._arrange(epoch)[: self.epoch_size])
        return self._cached[1]

    def step(self, epoch: int, step: int) -> StepSamples:
        """The samples of one optimizer step, `step` counted within the epoch."""
        first = step * self.global_batch_size
        rows = self.epoch(epoch)[first : first + self.global_batch_size]
        positions = np.arange(first, first + len(rows), dtype=np.int64)
        seeds = _as_seeds(hash_uint64(self._seed, _SAMPLES, epoch, positions))
        return StepSamples(rows, seeds, self._weights[self._concept_of_row[rows]])

    def _arrange(self, epoch: int) -> NDArray[np.int64]:
        positions, copies = self._repeated(epoch)
        rows, bucket = self._training.rows[positions], self._training.bucket[positions]
        shuffled = np.lexsort((hash_uint64(self._seed, _ROWS, epoch, rows, copies), bucket))
        rows, bucket = rows[shuffled], bucket[shuffled]
        in_full, remainder = self._divide(bucket, epoch)
        steps = np.concatenate([rows[in_full], rows[remainder]])
        size = self.global_batch_size
        full, short = steps[: len(steps) // size * size].reshape(-1, size), steps[len(steps) // size * size :]
        shuffled_steps = np.argsort(hash_uint64(self._seed, _STEPS, epoch, np.arange(len(full))), kind="stable")
        return np.concatenate([full[shuffled_steps].reshape(-1), short])

    def _divide(self, bucket: NDArray[np.int32], epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions (in a sequence sorted by bucket) that fill whole steps of one bucket, and the remainder.

        The remainder stays grouped by bucket, in a new order of buckets each epoch: a mixed step then has few buckets,
        and its micro-batches are as large as possible.
        """
        names, first, count = np.unique(bucket, return_index=True, return_counts=True)
        group = np.repeat(np.arange(len(names)), count)
        position = np.arange(len(bucket))
        whole = position - first[group] < (count // self.global_batch_size * self.global_batch_size)[group]
        remainder = position[~whole]
        bucket_rank = hash_uint64(self._seed, _BUCKETS, epoch, names.astype(np.int64))
        return position[whole], remainder[np.argsort(bucket_rank[group[remainder]], kind="stable")]

    def _repeated(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions in the training rows, each as often as it comes in this epoch, and the number of each copy.

        With `repeats` = 2.3 each image comes twice, and the 30 % with the lowest hashes of this epoch once more.
        """
        training = self._training
        count = np.zeros(len(training.rows), dtype=np.int64)
        for concept in np.unique(training.concept).tolist():
            members = np.flatnonzero(training.concept == concept)
            whole = math.floor(training.repeats[concept])
            count[members] = whole
            extra = _concept_samples(training, concept) - whole * len(members)
            hashes = hash_uint64(self._seed, _FRACTION, epoch, training.rows[members])
            count[members[np.argsort(hashes, kind="stable")[:extra]]] += 1
        positions = np.repeat(np.arange(len(count)), count)
        copies = np.arange(len(positions)) - np.repeat(np.cumsum(count) - count, count)
        return positions, copies


def make_order(
    index: Index, settings: DataSettings, seed: int, usable: NDArray[np.bool_], global_batch_size: int
) -> Order:
    """The order of the `usable` [rows] training images. Raises DataError if there are none or not one full step."""
    rows = np.flatnonzero(usable & ~index.validation)
    training = TrainingRows(
        rows,
        index.bucket[rows],
        index.concept[rows],
        balanced_repeats(settings.concepts, np.bincount(index.concept[rows], minlength=len(settings.concepts))),
        [concept.loss_weight for concept in settings.concepts],
    )
    order = Order(training, seed, global_batch_size, settings.drop_last)
    if not len(rows):
        raise DataError("No image is left to train on: none could be read.", "See problems.txt in the run folder.")
    if not order.steps_per_epoch:
        samples = order.samples_per_epoch
        raise DataError(
            f"0 steps per epoch: an epoch has {samples:,} samples, fewer than the global batch size of "
            f"{global_batch_size}, and drop_last leaves out the incomplete step.",
            f"Switch drop_last off, or lower the global batch size to at most {samples}.",
        )
    return order


def validation_steps(
    index: Index,
    concepts: Sequence[Concept],
    seed: int,
    usable: NDArray[np.bool_],
    global_batch_size: int,
    *,
    test: bool = False,
) -> list[StepSamples]:
    """All validation (or `test`) images once, always in the same order with the same seeds, whatever else is in the
    index."""
    is_test = np.array([concept.kind == "test" for concept in concepts])
    rows = np.flatnonzero(usable & index.validation & (is_test[index.concept] == test))
    rows = rows[np.argsort(index.bucket[rows], kind="stable")]
    weights = np.array([concept.loss_weight for concept in concepts], dtype=np.float64)[index.concept[rows]]
    seeds = _as_seeds(hash_uint64(seed, _VALIDATION, index.path_hash[rows]))
    return _steps(StepSamples(rows, seeds, weights), global_batch_size)


def item_steps(
    rows: NDArray[np.int64], items: NDArray[np.int64], seed: int, global_batch_size: int
) -> list[StepSamples]:
    """All `rows` once, always with the same seeds, which depend on `items`: each row's number in its data set."""
    seeds = _as_seeds(hash_uint64(seed, _ITEMS, items)) if len(rows) else items
    return _steps(StepSamples(rows, seeds, np.ones(len(rows))), global_batch_size)


def _steps(samples: StepSamples, size: int) -> list[StepSamples]:
    parts = (slice(first, first + size) for first in range(0, len(samples), size))
    return [StepSamples(samples.rows[part], samples.seeds[part], samples.weights[part]) for part in parts]


def balanced_repeats(concepts: Sequence[Concept], image_counts: NDArray[np.int64]) -> list[float]:
    """How often an image of each concept comes per epoch; `image_counts` is int64 [concepts].

    Images of `prior` concepts come as often as all others together, times their repeats: prior preservation uses as
    many images of the class as of the subject (Ruiz et al. 2022, arXiv:2208.12242).
    """
    counts = list(zip(concepts, image_counts.tolist(), strict=True))
    subject_samples = sum(concept.repeats * count for concept, count in counts if not concept.prior)
    prior_images = sum(count for concept, count in counts if concept.prior)
    factor = subject_samples / prior_images if subject_samples and prior_images else 1.0
    return [concept.repeats * factor if concept.prior else concept.repeats for concept in concepts]


def _concept_samples(training: TrainingRows, concept: int) -> int:
    """Samples of one concept per epoch: the same in every epoch, at least 1."""
    images = int((training.concept == concept).sum())
    return max(1, math.floor(training.repeats[concept] * images + 0.5))


def _as_seeds(hashes: UInt64Array) -> NDArray[np.int64]:
    return (hashes & _POSITIVE).astype(np.int64)
