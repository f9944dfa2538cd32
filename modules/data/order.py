"""The global order: which samples each optimizer step takes, a pure function of seed, epoch, index and global
batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept, DataError, TrainConfig
from modules.data.hashing import Words, hash_words
from modules.data.index import Index

# One number per use of the seed, so that no two draws share their hashes.
_ROWS, _SAMPLES, _BUCKETS, _STEPS, _FRACTION, _VALIDATION = range(1, 7)
_POSITIVE = np.uint64((1 << 63) - 1)  # seeds travel in int64 tensors


@dataclass(frozen=True)
class StepSamples:
    """The samples of one optimizer step over all ranks; three arrays of equal length."""

    rows: NDArray[np.int64]
    seeds: NDArray[np.int64]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class TrainingRows:
    """The pictures to order: three arrays of equal length, and two values per concept."""

    rows: NDArray[np.int64]
    bucket: NDArray[np.int32]
    concept: NDArray[np.int32]
    repeats: Sequence[float]
    loss_weight: Sequence[float]


class Order:
    """The order of every epoch.

    Each bucket is shuffled and cut into steps of G samples. What is left over in all buckets is pooled,
    bucket by bucket, and cut into mixed steps: so each sample comes exactly once and at most one step of an
    epoch, the last, is short. With `drop_last` that one is left out.
    """

    def __init__(self, training: TrainingRows, seed: int, global_batch_size: int, drop_last: bool = False) -> None:
        self.global_batch_size = global_batch_size
        self._training = training
        self._seed = seed
        self._samples = sum(_rounded(training, n) for n in np.unique(training.concept).tolist())
        whole_steps = self._samples // global_batch_size * global_batch_size
        self.epoch_size = whole_steps if drop_last else self._samples
        self._weights = np.array(training.loss_weight, dtype=np.float64)
        self._concept_of_row = np.zeros(int(training.rows.max(initial=-1)) + 1, dtype=np.int32)
        self._concept_of_row[training.rows] = training.concept
        self._cached: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, index: Index, config: TrainConfig, usable: NDArray[np.bool_], global_batch_size: int) -> Order:
        """The order of the usable pictures that are not set aside; raises DataError where that gives no
        step."""
        rows = np.flatnonzero(usable & ~index.validation)
        training = TrainingRows(
            rows,
            index.bucket[rows],
            index.concept[rows],
            balanced_repeats(config.concepts, np.bincount(index.concept[rows], minlength=len(config.concepts))),
            [concept.loss_weight for concept in config.concepts],
        )
        order = cls(training, config.seed, global_batch_size, config.drop_last)
        if not len(rows):
            raise DataError(
                "No picture is left to learn from: none could be read.", "See problems.txt in the run folder."
            )
        if not order.steps_per_epoch:
            raise DataError(
                f"0 steps per epoch: an epoch has {order._samples} samples, fewer than the global batch size "
                f"of {global_batch_size}, and drop_last leaves out the step that is not full.",
                f"Switch drop_last off, or lower the global batch size to at most {order._samples}.",
            )
        return order

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.epoch_size // self.global_batch_size)

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """The index rows of an epoch in order, [epoch_size]; step s is rows[s * G : (s + 1) * G]."""
        if self._cached[0] != epoch:
            self._cached = (epoch, self._arrange(epoch)[: self.epoch_size])
        return self._cached[1]

    def step(self, epoch: int, step: int) -> StepSamples:
        """The samples of one optimizer step, `step` counted within the epoch."""
        first = step * self.global_batch_size
        rows = self.epoch(epoch)[first : first + self.global_batch_size]
        positions = np.arange(first, first + len(rows), dtype=np.int64)
        seeds = _as_seeds(hash_words(self._seed, _SAMPLES, epoch, positions))
        return StepSamples(rows, seeds, self._weights[self._concept_of_row[rows]])

    def _arrange(self, epoch: int) -> NDArray[np.int64]:
        places, copies = self._repeated(epoch)
        rows, bucket = self._training.rows[places], self._training.bucket[places]
        shuffled = np.lexsort((hash_words(self._seed, _ROWS, epoch, rows, copies), bucket))
        rows, bucket = rows[shuffled], bucket[shuffled]
        in_full, left_over = self._cut(bucket, epoch)
        steps = np.concatenate([rows[in_full], rows[left_over]])
        size = self.global_batch_size
        full, short = steps[: len(steps) // size * size].reshape(-1, size), steps[len(steps) // size * size :]
        turn = np.argsort(hash_words(self._seed, _STEPS, epoch, np.arange(len(full))), kind="stable")
        return np.concatenate([full[turn].reshape(-1), short])

    def _cut(self, bucket: NDArray[np.int32], epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places (in a sequence sorted by bucket) that fill whole steps, and the others.

        The others stay grouped by bucket, in a new order of buckets each epoch: a mixed step then has few
        buckets, and its micro-batches are as large as can be.
        """
        names, first, count = np.unique(bucket, return_index=True, return_counts=True)
        group = np.repeat(np.arange(len(names)), count)
        place = np.arange(len(bucket))
        whole = place - first[group] < (count // self.global_batch_size * self.global_batch_size)[group]
        left_over = place[~whole]
        turn = hash_words(self._seed, _BUCKETS, epoch, names.astype(np.int64))
        return place[whole], left_over[np.argsort(turn[group[left_over]], kind="stable")]

    def _repeated(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places in the training rows, each as often as it comes in this epoch, and the number of each copy.

        Of `repeats` = 2.3 each picture gets 2, and the 30 % with the lowest hashes of this epoch one more.
        """
        training = self._training
        count = np.zeros(len(training.rows), dtype=np.int64)
        for concept in np.unique(training.concept).tolist():
            places = np.flatnonzero(training.concept == concept)
            whole = math.floor(training.repeats[concept])
            count[places] = whole
            extra = _rounded(training, concept) - whole * len(places)
            lots = hash_words(self._seed, _FRACTION, epoch, training.rows[places])
            count[places[np.argsort(lots, kind="stable")[:extra]]] += 1
        places = np.repeat(np.arange(len(count)), count)
        copies = np.arange(len(places)) - np.repeat(np.cumsum(count) - count, count)
        return places, copies


def validation_steps(
    index: Index, config: TrainConfig, usable: NDArray[np.bool_], global_batch_size: int, *, test: bool = False
) -> list[StepSamples]:
    """All validation (or `test`) pictures once, always in the same order with the same seeds, whatever else is
    in the index."""
    rows = np.flatnonzero(usable & index.validation & (of_test_concepts(index, config) == test))
    rows = rows[np.argsort(index.bucket[rows], kind="stable")]
    seeds = _as_seeds(hash_words(config.seed, _VALIDATION, index.path_hash[rows]))
    return [
        StepSamples(rows[part], seeds[part], np.ones(len(rows[part])))
        for part in (slice(first, first + global_batch_size) for first in range(0, len(rows), global_batch_size))
    ]


def of_test_concepts(index: Index, config: TrainConfig) -> NDArray[np.bool_]:
    """Which rows are kept for the test at the end of a run, [rows]."""
    is_test = np.array([concept.kind == "test" for concept in config.concepts])
    return cast("NDArray[np.bool_]", is_test[index.concept])


def balanced_repeats(concepts: Sequence[Concept], pictures: NDArray[np.int64]) -> list[float]:
    """How often each picture of each concept comes up in an epoch, of concepts with so many `pictures` each.

    Those that keep what is known (`prior`) come up as often as all others together, times their repeats: prior
    preservation wants as many pictures of the class as of the subject (Ruiz et al. 2022, arXiv:2208.12242).
    """
    counts = list(zip(concepts, pictures.tolist(), strict=True))
    learned = sum(concept.repeats * count for concept, count in counts if not concept.prior)
    known = sum(count for concept, count in counts if concept.prior)
    share = learned / known if learned and known else 1.0
    return [concept.repeats * share if concept.prior else concept.repeats for concept in concepts]


def _rounded(training: TrainingRows, concept: int) -> int:
    """Samples of one concept per epoch: the same in every epoch, and never none."""
    pictures = int((training.concept == concept).sum())
    return max(1, math.floor(training.repeats[concept] * pictures + 0.5))


def _as_seeds(words: Words) -> NDArray[np.int64]:
    return (words & _POSITIVE).astype(np.int64)
