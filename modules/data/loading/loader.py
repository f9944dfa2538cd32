"""The loader: the micro-batches of one rank, read and augmented in worker processes; each sample is a pure function of
its seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, cycle, groupby, islice, starmap
from operator import itemgetter
from typing import Final, Protocol, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from modules.config import Concept
from modules.config.sections.data import DataSettings
from modules.data.batch import DROPPED_REFERENCES, Batch, MicroBatch, SampleMixing, SampleTransform, stack_samples
from modules.data.cache.reader import MEMORY_BYTES
from modules.data.captions import augment_caption, plain_caption
from modules.data.index.index import Index
from modules.data.index.problems import Problem
from modules.data.loading.micro_batches import micro_batches
from modules.data.loading.on_the_fly import UnreadableImage
from modules.data.loading.order import Order, StepSamples
from modules.data.loading.packed_batch import large_places
from modules.data.loading.shares import Shares, ShareTable
from modules.data.loading.worker_batches import (
    Loading,
    MicroBatchReader,
    MicroBatchSampler,
    data_loader,
    end_workers,
    received,
    worker_obstacle,
)
from modules.data.rng import SampleRng, UInt64Array

KEPT_BYTES: Final = 64 << 20  # of validation batches, on each rank
_REFERENCES: Final = 0x4EF5
SplitStep: TypeAlias = Callable[..., list[MicroBatch]]  # into the micro-batches of one rank


class Examples(Protocol):
    """Where the loader gets examples from: the cache, or the image files themselves."""

    problems: list[Problem]  # of the rows that are not usable
    usable: NDArray[np.bool_]  # [rows]
    contents: UInt64Array  # [rows], a hash of what is in each file, as far as it is known; 0 if nothing is

    def with_memory(self, memory_bytes: int) -> Self:
        """The same examples, keeping at most this much (bytes) of what was read in memory."""

    def sample(self, row: int, rng: SampleRng | None) -> dict[str, Tensor]:
        """What SampleTransform gets of a usable row: a view drawn from `rng`, without it the one for validation."""

    def text(self, caption: str) -> dict[str, Tensor]:
        """What SampleTransform gets of a usable row's caption beside that; nothing if it is not encoded alone."""


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
        reference_dropout: float = 0.0,
    ) -> None:
        self._concepts, self._caption_dropout = concepts, caption_dropout
        self._reference_dropout = reference_dropout
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
        varying = getattr(self._transform, "varying_length", ())
        is_sent = get_worker_info() is not None
        return Batch(
            tensors=stack_samples(samples, varying, large_places) if is_sent else stack_samples(samples, varying),
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
            caption = plain_caption(captions[0], concept)
        else:
            caption = augment_caption(captions, concept, self._caption_dropout, rng)
            # a stream of its own, because images that are cached take other random numbers than those that are not
            if self._index.reference_sizes(row) and SampleRng(seed ^ _REFERENCES).uniform() < self._reference_dropout:
                example = {**example, DROPPED_REFERENCES: torch.tensor(True)}
        if any(caption == plain_caption(each, concept) for each in captions):  # not dropped
            example = {**example, **self._examples.text(caption)}
        generator.manual_seed(seed)
        return transform(example, caption, generator)


class Loader:
    """Batches of one rank. Touches no global random state; its errors are TandemErrors."""

    def __init__(
        self,
        settings: DataSettings,
        data: MicroBatchReader,
        order: Order,
        split_step: SplitStep,
        shares: Shares,
        mixes: bool = False,
        source: object = None,
    ) -> None:
        training, validation = settings.loader_workers, settings.validation_workers
        workers = [training, training if validation is None else validation]
        # why no processes load the data, although `settings` asks for some; or nothing
        self.warning = worker_obstacle(workers) if any(workers) else ""
        if self.warning:
            workers = [0, 0]
        self._data, self._order, self._shares = data, order, shares
        self._split_step = split_step
        self._split_training_step = partial(split_step, mixes=True) if mixes else split_step
        if settings.validation_batch_size is not None:
            self._split_step = partial(self._split_step, batch_size=settings.validation_batch_size, min_micro_batches=1)
        self._keeps_workers = settings.persistent_workers
        # DataLoader asks for one more when it hands one out, which is copied before it hands out the next
        samplers = [MicroBatchSampler(each * settings.prefetch_factor + 1) for each in workers]
        self._sampler, self._validation_sampler = samplers
        # workers of a DataLoader start with its first batch
        self._training, self._validation = (
            data_loader(settings.model_copy(update={"loader_workers": number}), data, sampler, source)
            for number, sampler in zip(workers, samplers, strict=True)
        )
        self._next_validation: tuple[Sequence[StepSamples], ShareTable, Iterator[Batch]] | None = None
        self._kept_validation: tuple[Sequence[StepSamples], ShareTable, list[Batch]] | None = None

    @property
    def read_ahead(self) -> int:
        """The most micro-batches, and so steps, that are divided before they are trained on."""
        return self._sampler.slots

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of this rank from step `first_step` of an epoch on; see `steps`."""
        return self._training_batches((epoch, step) for step in range(first_step, self._order.steps_in(epoch)))

    def steps(self, epoch: int, first_step: int, number: int) -> Iterator[Batch]:
        """The batches of this rank of `number` steps, from step `first_step` of an epoch on: the first ones of the next
        epoch are read ahead like all others, unless each epoch has workers of its own.

        One iterator at a time: requesting another ends the previous one.
        """
        positions = islice(self._positions(epoch, first_step), number)
        if self._keeps_workers:
            return self._training_batches(positions)
        epochs = groupby(positions, key=itemgetter(0))
        return chain.from_iterable(self._training_batches(steps) for _, steps in epochs)

    def validation(self, steps: Sequence[StepSamples]) -> Iterator[Batch]:
        """The batches of this rank for steps of `validation_steps`; possible in the middle of an epoch.

        They are the same until the ranks' shares change, so those of one list of steps are kept in memory, up to
        KEPT_BYTES. Of more, the first ones of the next validation on the same steps are read ahead, unless each has
        workers of its own.

        One validation at a time: requesting another ends the previous one.
        """
        table = self._shares.latest
        if (found := self._kept_validation) is not None and found[0] is steps and found[1] == table:
            yield from map(Batch.clone, found[2])
            return
        kept = _KeptBatches()
        for batch in self._read_validation(steps, table):
            kept.add(batch)
            yield batch
        if kept.batches:
            self._kept_validation, self._next_validation = (steps, table, kept.batches), None
            end_workers(self._validation, self._validation._iterator)

    def _read_validation(self, steps: Sequence[StepSamples], table: ShareTable) -> Iterator[Batch]:
        expected, self._next_validation = self._next_validation, None
        if expected is not None and expected[0] is steps and expected[1] == table:
            batches = expected[2]
        else:
            repeated = cycle(steps) if self._keeps_workers else steps
            split_step = partial(self._split_step, table=table)
            self._validation_sampler.pending = chain.from_iterable(map(split_step, repeated))
            batches = self._batches(self._validation)
        left = len(steps)
        while left and (batch := next(batches, None)) is not None:
            yield batch
            left -= batch.is_last_of_step
        if self._keeps_workers:
            self._next_validation = (steps, table, batches)

    def load(self, micro_batch: MicroBatch) -> Batch:
        """One micro-batch, read in this process."""
        return self._remakeable(self._data.batch(micro_batch))

    def close(self) -> None:
        """End the worker processes. Call it after a failure as well: workers left to the garbage collector hang for 5 s
        each, because it closes the queue through which torch asks them to exit."""
        self._next_validation = None
        for loading in (self._training, self._validation):
            end_workers(loading, loading._iterator)

    def _positions(self, epoch: int, first_step: int) -> Iterator[tuple[int, int]]:
        """(epoch, step) of each step from there on, without end."""
        for each in count(epoch):
            for step in range(first_step if each == epoch else 0, self._order.steps_in(each)):
                yield each, step

    def _training_batches(self, positions: Iterable[tuple[int, int]]) -> Iterator[Batch]:
        self._sampler.pending = chain.from_iterable(starmap(self._micro_batches, positions))
        return self._batches(self._training)

    def _micro_batches(self, epoch: int, step: int) -> list[MicroBatch]:
        table = self._shares.divide(self._order.progress(0).steps_until(epoch) + step)
        return self._split_training_step(self._order.step(epoch, step), table=table)

    def _batches(self, loading: Loading) -> Iterator[Batch]:
        return map(self._remakeable, received(loading))

    def _remakeable(self, batch: Batch) -> Batch:
        return batch if batch.structure is None else replace(batch, remake=self.load)


class _KeptBatches:
    """Copies of all batches of a validation; none as soon as they are too large, or not the same each time."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._bytes_left = KEPT_BYTES

    def add(self, batch: Batch) -> None:
        """Copy a batch. What a family's own `collate` made may be changed by its user, and a file that cannot be read
        may be readable next time."""
        self._bytes_left -= sum(tensor.nbytes for tensor in batch.tensors.values())
        if batch.structure is not None or batch.problems:
            self._bytes_left = -1
        if self._bytes_left < 0:
            self.batches.clear()
        else:
            self.batches.append(batch.clone())


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
    shares: Shares | None = None,
    source: object = None,
) -> Loader:
    """The loader of one rank; for `source` see `data_loader`, for the five arguments before `shares` `micro_batches`.

    Without `shares` they are equal.
    """
    memory_bytes = MEMORY_BYTES // max(1, settings.loader_workers)
    examples = examples.with_memory(memory_bytes)
    data = MicroBatchDataset(
        settings.concepts,
        settings.caption_dropout,
        index,
        examples,
        transform,
        validation_transform,
        mixing,
        settings.reference_dropout,
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
    return Loader(settings, data, order, split_step, shares or Shares(), mixes=mixing is not None, source=source)
