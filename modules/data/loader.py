"""The loader: micro-batches of one rank, read and drawn in worker processes, each sample a pure function of
its seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from modules.config import TandemError, TrainConfig, TrainingError
from modules.data.batch import Batch, Draw, MicroBatch
from modules.data.hashing import Draws
from modules.data.index import Index
from modules.data.order import Order, StepSamples
from modules.data.parcel import Parcel
from modules.data.prompts import draw_caption
from modules.data.reading import MEMORY_BYTES, CachedExamples
from modules.data.shares import micro_batches
from modules.data.worker_signals import obey_only_the_trainer

Share: TypeAlias = Callable[[StepSamples], list[MicroBatch]]
Received: TypeAlias = "Batch | Parcel | _Failure"
Loading: TypeAlias = "DataLoader[Received]"


class LoaderLost(TrainingError):
    """One of the processes that read pictures has ended."""

    kind = "loader"


class TrainingData(Dataset["Received"]):
    """Makes the batch of a micro-batch order. Validation rows always show view 0 and their first caption."""

    def __init__(self, config: TrainConfig, index: Index, cached: CachedExamples, draw: Draw) -> None:
        self._concepts = config.concepts
        self._dropout = config.caption_dropout
        self._index, self._cached, self._draw = index, cached, draw

    def __getitem__(self, order: MicroBatch) -> Received:
        # torch raises a worker's error anew from its text alone; handed over as a value, it arrives as it
        # was.
        try:
            batch = self.batch(order)
        except TandemError as error:
            return _Failure(error)
        return batch if get_worker_info() is None else Parcel.of(batch)

    def batch(self, order: MicroBatch) -> Batch:
        """Read, draw and stack the samples of one order."""
        generator = torch.Generator()
        samples = [self._sample(row, seed, generator) for row, seed in zip(order.rows, order.seeds, strict=True)]
        return Batch(
            tensors={name: torch.stack([sample[name] for sample in samples]) for name in samples[0]},
            ids=torch.tensor(order.rows, dtype=torch.int64),
            seeds=torch.tensor(order.seeds, dtype=torch.int64),
            weights=torch.tensor(order.weights, dtype=torch.float64),
            last=order.last,
            step_weight=order.step_weight,
            step_samples=order.step_samples,
        )

    def _sample(self, row: int, seed: int, generator: torch.Generator) -> dict[str, Tensor]:
        concept = self._concepts[self._index.concept[row]]
        captions = self._index.captions(row)
        if self._index.validation[row]:
            view, caption = 0, concept.prompt_prefix + captions[0]
        else:
            draws = Draws(seed)
            view = draws.below(int(self._cached.views[row]))
            caption = draw_caption(captions, concept, self._dropout, draws)
        generator.manual_seed(seed)
        return self._draw(self._cached.read(row, view), caption, generator)


class Loader:
    """Batches of one rank. Touches no global random state; its errors are TandemErrors."""

    def __init__(self, config: TrainConfig, data: TrainingData, order: Order, share: Share) -> None:
        self._config, self._data, self._order, self._share = config, data, order, share
        self._orders = _Orders()
        self._training = _data_loader(config, data, self._orders, keep_workers=config.persistent_workers)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of this rank from step `first_step` of an epoch on; the one marked `last` ends its
        step.

        One epoch at a time: asking for another ends the one before.
        """
        order = self._order
        steps = (order.step(epoch, step) for step in range(first_step, order.steps_per_epoch))
        self._orders.pending = chain.from_iterable(map(self._share, steps))
        return _received(self._training)

    def validation(self, steps: Sequence[StepSamples]) -> Iterator[Batch]:
        """The batches of this rank for steps of `validation_steps`; an epoch may be half read meanwhile."""
        orders = _Orders(chain.from_iterable(map(self._share, steps)))
        return _received(_data_loader(self._config, self._data, orders, keep_workers=False))

    def close(self) -> None:
        """End the worker processes. Call it also after a failure: workers left to the garbage collector hang for
        5 s each, because it closes the queue through which torch tells them to end."""
        _end_workers(self._training, self._training._iterator)


def make_loader(
    config: TrainConfig,
    index: Index,
    cached: CachedExamples,
    order: Order,
    draw: Draw,
    replica_index: int = 0,
    replica_count: int = 1,
    batch_size: int | None = None,
    min_micro_batches: int = 1,
    equally_many: bool = False,
) -> Loader:
    """The loader of one rank with the settings of `config`; `batch_size` (per rank) may differ from the
    config's."""
    size = config.batch_size if batch_size is None else batch_size
    memory = MEMORY_BYTES // max(1, config.loader_workers)
    data = TrainingData(config, index, cached.with_memory(memory), draw)
    share = partial(
        micro_batches,
        buckets=index.bucket,
        replica_index=replica_index,
        replica_count=replica_count,
        batch_size=size,
        min_micro_batches=min_micro_batches,
        equally_many=equally_many,
    )
    return Loader(config, data, order, share)


@dataclass(frozen=True)
class _Failure:
    """A worker's error on its way to the process that can raise it."""

    error: TandemError


@dataclass
class _Orders(Sampler[MicroBatch]):
    """The orders of the epoch to come; a DataLoader with persistent workers keeps its sampler, so this one is
    refilled."""

    pending: Iterator[MicroBatch] = field(default_factory=lambda: iter(()))

    def __iter__(self) -> Iterator[MicroBatch]:
        return self.pending


def _data_loader(config: TrainConfig, data: TrainingData, orders: _Orders, keep_workers: bool) -> Loading:
    workers = config.loader_workers
    return DataLoader(
        data,
        batch_size=None,
        sampler=orders,
        num_workers=workers,
        pin_memory=config.pin_memory and torch.cuda.is_available(),
        prefetch_factor=config.prefetch_factor if workers else None,
        persistent_workers=keep_workers and workers > 0,
        worker_init_fn=obey_only_the_trainer,
        generator=torch.Generator(),  # else torch would draw the workers' seeds from the global one
    )


def _received(loading: Loading) -> Iterator[Batch]:
    items = iter(loading)
    try:
        for item in items:
            if isinstance(item, _Failure):
                raise item.error
            yield item.batch() if isinstance(item, Parcel) else item
    except (TandemError, RuntimeError) as failure:
        _end_workers(loading, items)
        if isinstance(failure, TandemError) or "DataLoader worker" not in str(failure):
            raise
        raise LoaderLost(
            f"A loader process ended unexpectedly: {failure}",
            "Most often memory ran out: lower loader_workers or prefetch_factor, or set loader_workers to 0.",
        ) from failure


def _end_workers(loading: Loading, items: object) -> None:
    # Torch has no public way to end persistent workers but dropping all references, which tracebacks keep.
    end = getattr(items, "_shutdown_workers", None)  # only iterators with workers have it
    if end is not None:
        end()
        loading._iterator = None
