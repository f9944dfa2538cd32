"""Micro-batches of data sets that are not Tandem's: items by number, and the user's code to read and collate them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, default_collate

from modules.config import DataError
from modules.config.code_errors import describe_code_error
from modules.config.sections.data import DataSettings
from modules.data.batch import Batch, DataSets, MapDataset, MicroBatch
from modules.data.loading.loader import Loader
from modules.data.loading.micro_batches import micro_batches
from modules.data.loading.order import Order
from modules.data.loading.shares import Shares
from modules.data.loading.worker_batches import MicroBatchReader
from modules.data.nested import take_tensors
from modules.data.random_state import keep_random_state, seed_everything

T = TypeVar("T")
TRAIN, VALIDATION, TEST = "training", "validation", "test"
MAX_ITEMS = 2**31


class ItemBatches(MicroBatchReader):
    """Rows count through the training data, then the validation data, then the test data.

    An item is read with torch's, numpy's and Python's global generators seeded by its sample's seed, so that random
    augmentation is the same in every process; they are restored afterwards.
    """

    def __init__(self, data: DataSets) -> None:
        sets = {TRAIN: data.train, VALIDATION: data.validation, TEST: data.test}
        self._sets: dict[str, MapDataset] = {name: each for name, each in sets.items() if each is not None}
        self._lengths = {name: item_count(each, name) for name, each in self._sets.items()}
        self._collate: Callable[[list[object]], object] = data.collate or default_collate
        self._has_own_collate = data.collate is not None

    def __len__(self) -> int:
        return sum(self._lengths.values())

    def rows(self, name: str) -> NDArray[np.int64]:
        """The rows of one data set, empty if there is none."""
        before = sum(length for each, length in self._lengths.items() if _NUMBERS[each] < _NUMBERS[name])
        return np.arange(before, before + self._lengths.get(name, 0), dtype=np.int64)

    def batch(self, micro_batch: MicroBatch) -> Batch:
        """Read and collate the samples of a micro-batch. Raises DataError, which names the line that failed."""
        with keep_random_state():
            items = [self._item(row, seed) for row, seed in zip(micro_batch.rows, micro_batch.seeds, strict=True)]
            seed_everything(micro_batch.seeds[0])
            tensors, structure = take_tensors(self._collated(items, micro_batch.rows))
        return Batch(
            tensors={str(number): tensor for number, tensor in enumerate(tensors)},
            ids=torch.tensor(micro_batch.rows, dtype=torch.int64),
            seeds=torch.tensor(micro_batch.seeds, dtype=torch.int64),
            weights=torch.tensor(micro_batch.weights, dtype=torch.float64),
            is_last_of_step=micro_batch.is_last_of_step,
            step_samples=micro_batch.step_samples,
            structure=structure,
        )

    def _item(self, row: int, seed: int) -> object:
        name, number = self._place(row)
        seed_everything(seed)
        return _run(lambda: self._sets[name][number], f"Item {number} of the {name} data cannot be read")

    def _place(self, row: int) -> tuple[str, int]:
        """The data set of a row, and the number of its item there."""
        for name, length in self._lengths.items():
            if row < length:
                return name, row
            row -= length
        raise IndexError(row)

    def _collated(self, items: list[object], rows: tuple[int, ...]) -> object:
        collate = "collate" if self._has_own_collate else "torch's default_collate"
        advice = "" if self._has_own_collate else "Define a function collate(items) that makes a batch of such items."
        made = _run(lambda: self._collate(items), f"{collate} failed on {len(rows)} items", advice)
        if made is None:
            raise DataError(f"{collate} returned None instead of a batch.")
        return made


def item_loader(
    settings: DataSettings,
    items: ItemBatches,
    order: Order,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    min_micro_batches: int,
    equal_counts: bool,
    shares: Shares | None = None,
    source: object = None,
) -> Loader:
    """The loader of one rank; for its arguments see `make_loader`."""
    split_step = partial(
        micro_batches,
        buckets=np.zeros(len(items), dtype=np.int32),
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        min_micro_batches=min_micro_batches,
        equal_counts=equal_counts,
    )
    return Loader(settings, items, order, split_step, shares or Shares(), source=source)


_NUMBERS = {name: number for number, name in enumerate((TRAIN, VALIDATION, TEST))}


def item_count(data: MapDataset, name: str) -> int:
    """The length of a data set. Raises DataError if it has none, or is no map-style data set."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) or isinstance(data, IterableDataset):
        raise DataError(
            f"The {name} data is {type(data).__name__}, which has no length or no items by number.",
            "Give a map-style data set, with __len__ and __getitem__, as torch.utils.data.Dataset; not an iterable "
            "one or a DataLoader.",
        )
    length = _run(lambda: len(data), f"The length of the {name} data cannot be read")
    if length > MAX_ITEMS:
        raise DataError(
            f"The {name} data says that it has {length:,} items; at most {MAX_ITEMS:,} are possible, because the order "
            "of an epoch is in memory.",
            "Let __len__ count what is read at once, such as windows of a text that do not overlap.",
        )
    return length


def _run(work: Callable[[], T], what: str, advice: str = "") -> T:
    """Raises DataError for whatever the user's code raises, but for memory that runs out."""
    try:
        return work()
    except (DataError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # a user's code can raise anything
        if "allocate shared memory" in str(error):  # torch's collate in a worker
            full = "A loader worker has no room for its batch: /dev/shm (shared memory) is full"
            raise DataError(f"{full}.", "Start the container with --shm-size=8g, or set loader_workers=0.") from error
        raise DataError(f"{what}: {describe_code_error(error)}.", advice) from error
