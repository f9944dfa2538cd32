"""From a step of the global order to the micro-batches of one rank."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from modules.data.batch import MicroBatch
from modules.data.order import StepSamples


def micro_batches(
    step: StepSamples,
    buckets: NDArray[np.int32],
    replica_index: int,
    replica_count: int,
    batch_size: int,
    min_micro_batches: int = 1,
) -> list[MicroBatch]:
    """One rank's part of a step, in micro-batches of one bucket and at most `batch_size` samples each.

    The step is sorted by bucket and cut into nearly equal contiguous shares, so over all ranks each sample
    comes exactly once. There are at least `min_micro_batches` where the share has as many samples. A rank
    without samples gets a micro-batch of weight 0. `buckets` is the index column [all rows].
    """
    by_bucket = np.argsort(buckets[step.rows], kind="stable")
    first = len(step) * replica_index // replica_count
    last = len(step) * (replica_index + 1) // replica_count
    share = by_bucket[first:last]
    idle = not len(share)
    pieces = _pieces(buckets[step.rows[share]], batch_size, min_micro_batches) if not idle else [(0, 1)]
    # A weight of 0 still passes through forward and backward: the wrappers of all ranks wait for each other
    # there.
    share = by_bucket[:1] if idle else share
    rows, seeds = tuple(step.rows[share].tolist()), tuple(step.seeds[share].tolist())
    weights = (0.0,) if idle else tuple(step.weights[share].tolist())
    step_weight = float(step.weights.sum())
    return [
        MicroBatch(rows[a:b], seeds[a:b], weights[a:b], number == len(pieces) - 1, step_weight, len(step))
        for number, (a, b) in enumerate(pieces)
    ]


def _pieces(bucket: NDArray[np.int32], batch_size: int, at_least: int) -> list[tuple[int, int]]:
    """Where to cut a share that is sorted by bucket: (first, last) of pieces, balanced within each bucket."""
    borders = [0, *(np.flatnonzero(np.diff(bucket)) + 1).tolist(), len(bucket)]
    groups = [(a, b) for a, b in itertools.pairwise(borders)]
    cuts = [-(-(b - a) // batch_size) for a, b in groups]
    while sum(cuts) < min(at_least, len(bucket)):
        largest = max(range(len(groups)), key=lambda n: (groups[n][1] - groups[n][0]) / cuts[n])
        cuts[largest] += 1
    return [
        (a + (b - a) * piece // count, a + (b - a) * (piece + 1) // count)
        for (a, b), count in zip(groups, cuts, strict=True)
        for piece in range(count)
    ]
