"""The data path of a family that brings its own data sets: no index and no cache, the order and loader of images."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from modules.config import DataError, TrainConfig
from modules.data.batch import MicroBatch
from modules.data.loading.item_batches import TEST, TRAIN, VALIDATION, ItemBatches, item_loader
from modules.data.loading.order import Order, TrainingRows, item_steps
from modules.data.loading.shares import Shares
from modules.data.rng import hash_uint64, to_unit_interval
from modules.distributed import RankGroup
from modules.families._family import Family
from modules.monitoring import Report
from modules.training.data.dataset import Dataset, validation_step_size
from modules.training.data.unreadable_images import UnreadableImages

RESCAN_IS_UNUSED = "rescan=epoch has no effect: the data does not come from folders of images."
_SPLIT = 0x5EED
_NOT_SEEDED = (
    "Item {item} of the data is not the same on all ranks. If it is random, draw with the global generators of torch, "
    "numpy or Python, which are seeded for each sample; otherwise the result depends on the number of ranks, and a "
    "resumed run does not continue exactly."
)


def prepare_custom_dataset(
    config: TrainConfig,
    family: Family,
    global_batch_size: int,
    ranks: RankGroup,
    report: Report,
    problems_file: Path,
    *,
    shares: Shares,
    equal_micro_batches: bool = False,
) -> Dataset:
    """Build the data sets and lay out the order of samples. Called by every rank.

    Raises ConfigError or DataError if they cannot be used. `equal_micro_batches`: every rank gets the same number of
    micro-batches per step.
    """
    if config.rescan == "epoch":
        report.warning(RESCAN_IS_UNUSED)
    items = ItemBatches(family.data_sets())
    train, own_validation, test = (items.rows(name) for name in (TRAIN, VALIDATION, TEST))
    _check_equal(items, [len(each) for each in (train, own_validation, test)], ranks, report)
    # the share `validation_split`, chosen by the seed
    held_out = train[to_unit_interval(hash_uint64(train, config.seed, _SPLIT))[: len(train)] < config.validation_split]
    order = order_items(np.setdiff1d(train, held_out), config, global_batch_size)
    validation = np.concatenate([held_out, own_validation])
    counted = (
        f"{order.samples_per_epoch:,} samples to train on, {len(validation):,} for validation, "
        f"{len(test):,} for the test"
    )
    report.data([f"Data: {counted}; {order.steps_per_epoch:,} steps per epoch of {global_batch_size} samples."])
    loader = item_loader(
        config,
        items,
        order,
        batch_size=config.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        min_micro_batches=config.gradient_accumulation_steps if config.global_batch_size else 1,
        equal_counts=equal_micro_batches,
        shares=shares,
        source=family.source,
    )
    size = validation_step_size(config, ranks, global_batch_size)
    return Dataset(
        index=None,
        examples=None,
        concepts=(),
        order=order,
        loader=loader,
        validation=item_steps(validation, np.concatenate([held_out, _numbered(own_validation)]), config.seed, size),
        test=item_steps(test, _numbered(test), config.seed, size),
        unreadable=UnreadableImages(len(items), ranks, report, problems_file, []),
        shares=shares,
    )


def _numbered(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each row in its data set."""
    return np.arange(len(rows), dtype=np.int64)


def order_items(rows: NDArray[np.int64], config: TrainConfig, global_batch_size: int) -> Order:
    """The order of these rows. Raises DataError if there are none or not one full step."""
    if not len(rows):
        raise DataError("The training data is empty.", "Let build_data return a data set with at least one item.")
    none = np.zeros(len(rows), dtype=np.int32)
    order = Order(TrainingRows(rows, none, none, [1.0], [1.0], None), config.seed, global_batch_size, config.drop_last)
    if not order.steps_per_epoch:
        raise DataError(
            f"0 steps per epoch: there are {len(rows):,} samples, fewer than the global batch size of "
            f"{global_batch_size}, and drop_last leaves out the incomplete step.",
            f"Switch drop_last off, or lower the global batch size to at most {len(rows)}.",
        )
    return order


def _check_equal(items: ItemBatches, lengths: list[int], ranks: RankGroup, report: Report) -> None:
    """Raises DataError on all ranks if they have data sets of other lengths; warns if some items are others."""
    counts = ranks.gather("lengths of the data", " ".join(map(str, lengths)))
    other = next((rank for rank, text in enumerate(counts) if text != counts[0]), None)
    if other is not None:
        raise DataError(
            f"The training, validation and test data have {counts[0]} items on rank 0, but {counts[other]} on rank "
            f"{other}.",
            "Let build_data return the same on every rank, and copy the same files to every machine.",
        )
    if ranks.world_size == 1:
        return
    some = sorted({0, len(items) // 2, len(items) - 1})
    digests = ranks.gather("items of the data", " ".join(_digest(items, row) for row in some))
    for number, row in enumerate(some):
        if len({text.split(" ")[number] for text in digests}) > 1:
            report.warning(_NOT_SEEDED.format(item=row))
            return


def _digest(items: ItemBatches, row: int) -> str:
    """Of the tensors of one item."""
    batch = items.batch(MicroBatch((row,), (row,), (1.0,), is_last_of_step=False, step_samples=1))
    digest = hashlib.blake2b(digest_size=8)
    for tensor in batch.tensors.values():
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
