"""The global order: which samples each optimizer step takes, a pure function of seed, epoch, index and global batch
size."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept, DataError
from modules.config.sections.data import DataSettings
from modules.data.index.index import Index
from modules.data.loading.progress import Origin, Progress
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
    """The images to order: arrays [images], and two sequences [concepts]."""

    rows: NDArray[np.int64]  # of the index, ascending
    bucket: NDArray[np.int32]
    concept: NDArray[np.int32]
    repeats: Sequence[float]
    loss_weight: Sequence[float]
    identity: UInt64Array | None  # None: that of an image is its row, as up to 0.2.0


@dataclass(frozen=True)
class Turn:
    """Where the order became another one, in the middle of an epoch, because other images or settings were found.

    The epoch goes on with what it has not shown yet.
    """

    samples: int  # of the run until then
    step: int
    epoch: int
    shown: NDArray[np.int64]  # [images], how often this epoch has shown each image until then
    shown_of_all: NDArray[np.int64] | None = None  # [rows of the index] the same, also of images not trained on now


class Order:
    """The order of every epoch.

    Each bucket is shuffled and divided into steps of `global_batch_size` samples. The remainders of all buckets are
    pooled, bucket by bucket, and divided into mixed steps. So each sample comes exactly once per epoch, and at most the
    last step has fewer samples; `drop_last` leaves it out.

    An image's place and random numbers follow from its identity, so that images which come or go leave the others
    theirs, as far as the borders of steps allow. Runs that began up to 0.2.0 keep an order by the numbers of rows, with
    random numbers by the place in the epoch, to their end; so their validation split is another one (`by_image` false).
    """

    def __init__(
        self,
        training: TrainingRows,
        seed: int,
        global_batch_size: int,
        drop_last: bool = False,
        turn: Turn | None = None,
    ) -> None:
        self.global_batch_size = global_batch_size
        self.turn = turn
        self.training = training
        self._seed = seed
        self._drop_last = drop_last
        self.samples_per_epoch = sum(_concept_samples(training, n) for n in np.unique(training.concept).tolist())
        self.epoch_size = self._kept(self.samples_per_epoch)
        self._weights = np.array(training.loss_weight, dtype=np.float64)
        self._cached: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        rest = 0 if turn is None else len(self.epoch(turn.epoch))
        self._origin = None if turn is None else Origin(turn.samples, turn.step, turn.epoch, rest)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in each epoch."""
        return -(-self.epoch_size // self.global_batch_size)

    def steps_in(self, epoch: int) -> int:
        """Optimizer steps in this epoch, in that of the turn from there on."""
        origin = self._origin
        size = origin.rest if origin is not None and origin.epoch == epoch else self.epoch_size
        return -(-size // self.global_batch_size)

    def progress(self, samples_seen: int) -> Progress:
        """Where the run is after that many samples."""
        return Progress(samples_seen, self.epoch_size, self.global_batch_size, self._origin)

    def epochs_after(self, step: int) -> int:
        """Complete epochs after that many steps of the run, at least those of the turn."""
        return self.progress(self.progress(0).samples_until(step)).epoch

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """int64 [epoch_size]: the index rows of an epoch, `global_batch_size` of them for each step.

        In the epoch of the turn only what it has not shown before.
        """
        return self.training.rows[self._places(epoch)[0]]

    def step(self, epoch: int, step: int) -> StepSamples:
        """The samples of one optimizer step, `step` counted as in `epoch`."""
        part = slice(step * self.global_batch_size, (step + 1) * self.global_batch_size)
        places, copies = (each[part] for each in self._places(epoch))
        rows, identity = self.training.rows[places], self.training.identity
        if identity is None:
            hashes = hash_uint64(self._seed, _SAMPLES, epoch, np.arange(part.start, part.start + len(rows)))
        else:
            hashes = hash_uint64(self._seed, _SAMPLES, epoch, identity[places], copies)
        return StepSamples(rows, _as_seeds(hashes), self._weights[self.training.concept[places]])

    def shown(self, progress: Progress) -> NDArray[np.int64]:
        """int64 [images]: how often the present epoch has shown each image."""
        if not progress.sample_in_epoch:
            return self.shown_before(progress.epoch)
        places = self._places(progress.epoch)[0][: progress.sample_in_epoch]
        shown: NDArray[np.int64] = np.bincount(places, minlength=len(self.training.rows))
        return shown + self.shown_before(progress.epoch)

    def shown_before(self, epoch: int) -> NDArray[np.int64]:
        """int64 [images]: how often this epoch has shown each image before the turn."""
        if self.turn is not None and self.turn.epoch == epoch:
            return self.turn.shown
        return np.zeros(len(self.training.rows), dtype=np.int64)

    def digest(self) -> str:
        """A hash of all that the order of an epoch follows from; equal ones show the same images at the same step."""
        training = self.training
        assert training.identity is not None, "only an order by image has one"
        settings = [list(training.repeats), self._seed, self.global_batch_size, self._drop_last]
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16)
        for column in (training.identity, training.bucket, training.concept):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def _places(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions in the training rows in the order of an epoch, and which of its image's samples each is."""
        if epoch not in self._cached:
            for former in list(self._cached)[:-1]:  # the next epoch is read ahead while this one is trained on
                del self._cached[former]
            places = self._arrange(epoch)
            places = places[: self._kept(len(places))]
            self._cached[epoch] = (places, _occurrences(places) + self.shown_before(epoch)[places])
        return self._cached[epoch]

    def _kept(self, samples: int) -> int:
        """How many of the samples of an epoch come."""
        return samples // self.global_batch_size * self.global_batch_size if self._drop_last else samples

    def _arrange(self, epoch: int) -> NDArray[np.int64]:
        training, size = self.training, self.global_batch_size
        positions, copies = self._repeated(epoch)
        names = training.rows if training.identity is None else training.identity
        bucket = training.bucket[positions]
        shuffled = np.lexsort((hash_uint64(self._seed, _ROWS, epoch, names[positions], copies), bucket))
        in_full, remainder = self._divide(bucket[shuffled], epoch)
        steps = shuffled[np.concatenate([in_full, remainder])]
        full, short = steps[: len(steps) // size * size].reshape(-1, size), steps[len(steps) // size * size :]
        shuffled_steps = np.argsort(hash_uint64(self._seed, _STEPS, epoch, np.arange(len(full))), kind="stable")
        arranged: NDArray[np.int64] = positions[np.concatenate([full[shuffled_steps].reshape(-1), short])]
        return arranged

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

        With `repeats` = 2.3 each image comes twice, and 30 % once more: the next ones in each epoch, in a circle of all
        by their hashes, so that each has had its turn before any has another.
        """
        training = self.training
        count = np.zeros(len(training.rows), dtype=np.int64)
        for concept in np.unique(training.concept).tolist():
            members = np.flatnonzero(training.concept == concept)
            whole = math.floor(training.repeats[concept])
            count[members] = whole
            extra = _concept_samples(training, concept) - whole * len(members)
            if not extra:
                continue
            if training.identity is None:
                hashes, first = hash_uint64(self._seed, _FRACTION, epoch, training.rows[members]), 0
            else:
                hashes, first = hash_uint64(self._seed, _FRACTION, training.identity[members]), epoch * extra
            circle = members[np.argsort(hashes, kind="stable")]
            count[circle[(first + np.arange(extra)) % len(circle)]] += 1
        count = np.maximum(count - self.shown_before(epoch), 0)
        positions = np.repeat(np.arange(len(count)), count)
        return positions, _occurrences(positions)


def make_order(
    index: Index,
    settings: DataSettings,
    seed: int,
    usable: NDArray[np.bool_],
    global_batch_size: int,
    *,
    by_image: bool = True,
    turn: Turn | None = None,
) -> Order:
    """The order of the `usable` [rows] training images. Raises DataError if there are none or not one full step."""
    rows = np.flatnonzero(usable & ~index.validation)
    training = TrainingRows(
        rows,
        index.bucket[rows],
        index.concept[rows],
        balanced_repeats(settings.concepts, np.bincount(index.concept[rows], minlength=len(settings.concepts))),
        [concept.loss_weight for concept in settings.concepts],
        index.identities(settings.concepts)[rows] if by_image else None,
    )
    order = Order(training, seed, global_batch_size, settings.drop_last, turn)
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


def _occurrences(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each number [n] has come before it."""
    by_number = np.argsort(numbers, kind="stable")
    ordered = numbers[by_number]
    found = np.empty_like(numbers)
    found[by_number] = np.arange(len(numbers)) - np.searchsorted(ordered, ordered)
    return found


def _as_seeds(hashes: UInt64Array) -> NDArray[np.int64]:
    return (hashes & _POSITIVE).astype(np.int64)
