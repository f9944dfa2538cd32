"""Splitting a step of the global order into the micro-batches of one rank."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from modules.data.batch import MicroBatch
from modules.data.loading.order import StepSamples
from modules.data.loading.shares import ShareTable, share_counts
from modules.data.rng import hash_uint64

_PARTNERS = 0x9A17  # one number per use of a seed


def micro_batches(
    step: StepSamples,
    buckets: NDArray[np.int32],
    rank: int,
    world_size: int,
    batch_size: int,
    min_micro_batches: int = 1,
    equal_counts: bool = False,
    mixes: bool = False,
    table: ShareTable = (),
) -> list[MicroBatch]:
    """One rank's part of a step, in micro-batches of one bucket and at most `batch_size` samples each.

    The step is sorted by bucket and divided into contiguous parts, as large as `table` has it, so that every sample is
    on exactly one rank. There are at least `min_micro_batches` if the part has that many samples, and with
    `equal_counts` the same number on every rank. Missing ones, as on a rank without samples, are padded with a sample
    of weight 0. `buckets` is the index column int32 [all rows]. With `mixes`, each sample gets a partner from the whole
    step.
    """
    partner = _partners(step, buckets) if mixes else None
    by_bucket = np.argsort(buckets[step.rows], kind="stable")
    borders = [0, *itertools.accumulate(share_counts(len(step), world_size, table))]

    def split(of_rank: int, at_least: int) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        part = by_bucket[borders[of_rank] : borders[of_rank + 1]]
        return part, _slices(buckets[step.rows[part]], batch_size, at_least)

    part, slices = split(rank, min_micro_batches)
    count = max(1, len(slices))
    if equal_counts:
        count = max(count, *(len(split(other, min_micro_batches)[1]) for other in range(world_size)))
        part, slices = split(rank, count)
    # Padding of weight 0 still runs forward and backward, because DDP and FSDP wait for all ranks there.
    padding = [(by_bucket[:1], np.zeros(1))] * (count - len(slices))
    chosen = [(part[a:b], step.weights[part[a:b]]) for a, b in slices] + padding

    def partners_of(positions: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
        if partner is None:
            return ()
        others = partner[positions]
        return tuple(zip(step.rows[others].tolist(), step.seeds[others].tolist(), strict=True))

    return [
        MicroBatch(
            tuple(step.rows[positions].tolist()),
            tuple(step.seeds[positions].tolist()),
            tuple(weights.tolist()),
            is_last_of_step=number == count - 1,
            step_samples=len(step),
            partners=partners_of(positions),
            step_seed=int(step.seeds[0]) if mixes else 0,
        )
        for number, (positions, weights) in enumerate(chosen)
    ]


def _partners(step: StepSamples, buckets: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [samples]: positions in the step; within each bucket one random cycle, so only a sample that is alone in
    its bucket is its own partner."""
    bucket = buckets[step.rows]
    by_bucket = np.lexsort((hash_uint64(int(step.seeds[0]), _PARTNERS, step.seeds), bucket))
    following = np.roll(by_bucket, -1)
    first = np.flatnonzero(np.diff(bucket[by_bucket], prepend=-1))
    last = np.append(first[1:], len(bucket)) - 1
    following[last] = by_bucket[first]
    partner = np.empty(len(bucket), dtype=np.int64)
    partner[by_bucket] = following
    return partner


def _slices(bucket: NDArray[np.int32], batch_size: int, at_least: int) -> list[tuple[int, int]]:
    """(start, end) of the micro-batches of a part that is sorted by `bucket`, balanced within each bucket."""
    if not len(bucket):
        return []
    borders = [0, *(np.flatnonzero(np.diff(bucket)) + 1).tolist(), len(bucket)]
    groups = [(a, b) for a, b in itertools.pairwise(borders)]
    counts = [-(-(b - a) // batch_size) for a, b in groups]
    while sum(counts) < min(at_least, len(bucket)):
        largest = max(range(len(groups)), key=lambda n: (groups[n][1] - groups[n][0]) / counts[n])
        counts[largest] += 1
    return [
        (a + (b - a) * n // count, a + (b - a) * (n + 1) // count)
        for (a, b), count in zip(groups, counts, strict=True)
        for n in range(count)
    ]
