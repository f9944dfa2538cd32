"""The loader: the micro-batches of one rank, read and augmented in worker processes; each sample is a pure function of
its seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Protocol, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from modules.config import Concept, TandemError, TrainingError
from modules.config.sections.data import DataSettings
from modules.data.batch import Batch, MicroBatch, SampleMixing, SampleTransform
from modules.data.cache.reader import MEMORY_BYTES
from modules.data.index.index import Index
from modules.data.index.problems import Problem
from modules.data.loading.caption_augmentation import augment_caption
from modules.data.loading.micro_batches import micro_batches
from modules.data.loading.on_the_fly import UnreadableImage
from modules.data.loading.order import Order, StepSamples
from modules.data.loading.packed_batch import PackedBatch
from modules.data.loading.worker_signals import ignore_foreign_sigterm
from modules.data.rng import SampleRng

SplitStep: TypeAlias = Callable[..., list[MicroBatch]]  # into the micro-batches of one rank
Received: TypeAlias = "Batch | PackedBatch | _WorkerError"
Loading: TypeAlias = "DataLoader[Received]"


class LoaderWorkerDied(TrainingError):
    """A loader worker process ended unexpectedly."""

    kind = "loader"


class Examples(Protocol):
    """Where the loader gets examples from: the cache, or the image files themselves."""

    problems: list[Problem]  # of the rows that are not usable
    usable: NDArray[np.bool_]  # [rows]

    def with_memory(self, memory_bytes: int) -> Self:
        """The same examples, keeping at most this much (bytes) of what was read in memory."""

    def sample(self, row: int, rng: SampleRng | None) -> dict[str, Tensor]:
        """What SampleTransform gets of a usable row: a view drawn from `rng`, without it the one for validation."""


class MicroBatchReader(Dataset["Received"], ABC):
    """Maps a MicroBatch to its Batch, in the loader's workers."""

    @abstractmethod
    def batch(self, micro_batch: MicroBatch) -> Batch:
        """Read the samples of a micro-batch."""

    def __getitem__(self, micro_batch: MicroBatch) -> Received:
        # torch re-raises a worker's error from its text alone; returned as a value, it arrives unchanged.
        try:
            batch = self.batch(micro_batch)
        except TandemError as error:
            return _WorkerError(error)
        return batch if get_worker_info() is None else PackedBatch.pack(batch)


class MicroBatchDataset(MicroBatchReader):
    """Micro-batches of images. Validation rows always use the same view and their first caption."""

    def __init__(
        self,
        concepts: Sequence[Concept],
        caption_dropout: float,
        index: Index,
        examples: Examples,
        transform: SampleTransform,
        validation_transform: SampleTransform | None = None,
        mixing: SampleMixing | None = None,
    ) -> None:
        self._concepts, self._caption_dropout = concepts, caption_dropout
        self._index, self._examples, self._transform = index, examples, transform
        self._validation_transform = validation_transform or transform
        self._mixing = mixing

    def batch(self, micro_batch: MicroBatch) -> Batch:
        """Read, augment, transform and stack the samples of a micro-batch."""
        generator = torch.Generator()
        problems: dict[int, Problem] = {}
        rows_and_seeds = zip(micro_batch.rows, micro_batch.seeds, strict=True)
        samples = [self._sample(row, seed, generator, problems) for row, seed in rows_and_seeds]
        if self._mixing is not None and micro_batch.partners:
            samples = self._mixed(self._mixing, samples, micro_batch, generator, problems)
        return Batch(
            tensors={name: torch.stack([sample[name] for sample in samples]) for name in samples[0]},
            ids=torch.tensor(micro_batch.rows, dtype=torch.int64),
            seeds=torch.tensor(micro_batch.seeds, dtype=torch.int64),
            weights=torch.tensor(
                [
                    0.0 if row in problems else weight
                    for row, weight in zip(micro_batch.rows, micro_batch.weights, strict=True)
                ],
                dtype=torch.float64,
            ),
            is_last_of_step=micro_batch.is_last_of_step,
            step_samples=micro_batch.step_samples,
            problems=tuple(problems.values()),
        )

    def _mixed(
        self,
        mixing: SampleMixing,
        samples: list[dict[str, Tensor]],
        micro_batch: MicroBatch,
        generator: torch.Generator,
        problems: dict[int, Problem],
    ) -> list[dict[str, Tensor]]:
        """The samples mixed with their partners; a partner that another rank or micro-batch has is read here, too, and
        one that cannot be read is left out."""
        read = dict(zip(micro_batch.seeds, samples, strict=True))
        mixed = []
        for sample, (row, seed) in zip(samples, micro_batch.partners, strict=True):
            partner = read.get(seed) or self._sample(row, seed, generator, problems)
            generator.manual_seed(micro_batch.step_seed)
            mixed.append(mixing(sample, sample if row in problems else partner, generator))
        return mixed

    def _sample(
        self, row: int, seed: int, generator: torch.Generator, problems: dict[int, Problem]
    ) -> dict[str, Tensor]:
        """What the family makes of a row; of one that cannot be read, which is added to `problems`, a blank."""
        concept = self._concepts[self._index.concept[row]]
        captions = self._index.captions(row)
        is_validation = bool(self._index.validation[row])
        transform = self._validation_transform if is_validation else self._transform
        rng = None if is_validation else SampleRng(seed)
        try:
            example = self._examples.sample(row, rng)
        except UnreadableImage as unreadable:
            problems[row] = unreadable.problem
            example = unreadable.blank
        if rng is None:
            caption = concept.prompt_prefix + captions[0]
        else:
            caption = augment_caption(captions, concept, self._caption_dropout, rng)
        generator.manual_seed(seed)
        return transform(example, caption, generator)


class Loader:
    """Batches of one rank. Touches no global random state; its errors are TandemErrors."""

    def __init__(
        self, settings: DataSettings, data: MicroBatchReader, order: Order, split_step: SplitStep, mixes: bool = False
    ) -> None:
        self._data, self._order = data, order
        self._split_step = split_step
        self._split_training_step = partial(split_step, mixes=True) if mixes else split_step
        self._sampler, self._validation_sampler = _MicroBatchSampler(), _MicroBatchSampler()
        # workers of a DataLoader start with its first batch
        self._training, self._validation = (
            _data_loader(settings, data, sampler, keep_workers=settings.persistent_workers)
            for sampler in (self._sampler, self._validation_sampler)
        )

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of this rank from step `first_step` of an epoch on.

        One epoch at a time: requesting another ends the previous one.
        """
        order = self._order
        steps = (order.step(epoch, step) for step in range(first_step, order.steps_per_epoch))
        self._sampler.pending = chain.from_iterable(map(self._split_training_step, steps))
        return self._batches(self._training)

    def validation(self, steps: Sequence[StepSamples]) -> Iterator[Batch]:
        """The batches of this rank for steps of `validation_steps`; possible in the middle of an epoch.

        One validation at a time: requesting another ends the previous one.
        """
        self._validation_sampler.pending = chain.from_iterable(map(self._split_step, steps))
        return self._batches(self._validation)

    def load(self, micro_batch: MicroBatch) -> Batch:
        """One micro-batch, read in this process."""
        return self._remakeable(self._data.batch(micro_batch))

    def close(self) -> None:
        """End the worker processes. Call it after a failure as well: workers left to the garbage collector hang for 5 s
        each, because it closes the queue through which torch asks them to exit."""
        for loading in (self._training, self._validation):
            _end_workers(loading, loading._iterator)

    def _batches(self, loading: Loading) -> Iterator[Batch]:
        return map(self._remakeable, _received(loading))

    def _remakeable(self, batch: Batch) -> Batch:
        return batch if batch.structure is None else replace(batch, remake=self.load)


def make_loader(
    settings: DataSettings,
    index: Index,
    examples: Examples,
    order: Order,
    transform: SampleTransform,
    validation_transform: SampleTransform | None = None,
    mixing: SampleMixing | None = None,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    min_micro_batches: int = 1,
    equal_counts: bool = False,
) -> Loader:
    """The loader of one rank; for the last five arguments see `micro_batches`."""
    memory_bytes = MEMORY_BYTES // max(1, settings.loader_workers)
    examples = examples.with_memory(memory_bytes)
    data = MicroBatchDataset(
        settings.concepts, settings.caption_dropout, index, examples, transform, validation_transform, mixing
    )
    split_step = partial(
        micro_batches,
        buckets=index.bucket,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        min_micro_batches=min_micro_batches,
        equal_counts=equal_counts,
    )
    return Loader(settings, data, order, split_step, mixes=mixing is not None)


@dataclass(frozen=True)
class _WorkerError:
    """A worker's error, sent to the trainer's process to be raised there."""

    error: TandemError


@dataclass
class _MicroBatchSampler(Sampler[MicroBatch]):
    """The micro-batches to load; refilled for every epoch, because persistent workers keep their sampler."""

    pending: Iterator[MicroBatch] = field(default_factory=lambda: iter(()))

    def __iter__(self) -> Iterator[MicroBatch]:
        return self.pending


def _data_loader(
    settings: DataSettings, data: MicroBatchReader, sampler: _MicroBatchSampler, keep_workers: bool
) -> Loading:
    workers = settings.loader_workers
    return DataLoader(
        data,
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        pin_memory=settings.pin_memory and torch.cuda.is_available(),
        prefetch_factor=settings.prefetch_factor if workers else None,
        persistent_workers=keep_workers and workers > 0,
        worker_init_fn=ignore_foreign_sigterm,
        generator=torch.Generator(),  # otherwise torch takes the workers' seeds from the global one
    )


def _received(loading: Loading) -> Iterator[Batch]:
    items = iter(loading)
    try:
        for item in items:
            if isinstance(item, _WorkerError):
                raise item.error
            yield item.unpack() if isinstance(item, PackedBatch) else item
    except (TandemError, RuntimeError) as failure:
        _end_workers(loading, items)
        if isinstance(failure, TandemError) or "DataLoader worker" not in str(failure):
            raise
        raise LoaderWorkerDied(
            f"A loader process ended unexpectedly: {failure}",
            "It usually ran out of memory: lower loader_workers or prefetch_factor, or set loader_workers to 0.",
        ) from failure


def _end_workers(loading: Loading, items: object) -> None:
    # The only public way to end persistent workers is to drop all references, and tracebacks keep some.
    shut_down = getattr(items, "_shutdown_workers", None)  # only iterators with workers have it
    if shut_down is not None:
        shut_down()
        loading._iterator = None
