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
    equally_many: bool = False,
) -> list[MicroBatch]:
    """One rank's part of a step, in micro-batches of one bucket and at most `batch_size` samples each.

    The step is sorted by bucket and cut into nearly equal contiguous shares, so over all ranks each sample
    comes exactly once. There are at least `min_micro_batches` where the share has as many samples, and as many on
    every rank where they are to be `equally_many`. What is missing, such as the one of a rank without samples, is
    filled up with micro-batches of one sample and weight 0. `buckets` is the index column [all rows].
    """
    by_bucket = np.argsort(buckets[step.rows], kind="stable")

    def cut(replica: int, at_least: int) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        share = by_bucket[len(step) * replica // replica_count : len(step) * (replica + 1) // replica_count]
        return share, _pieces(buckets[step.rows[share]], batch_size, at_least)

    share, pieces = cut(replica_index, min_micro_batches)
    count = max(1, len(pieces))
    if equally_many:
        count = max(count, *(len(cut(replica, min_micro_batches)[1]) for replica in range(replica_count)))
        share, pieces = cut(replica_index, count)
    # A weight of 0 still passes through forward and backward: the wrappers of all ranks wait for each other
    # there.
    idle = by_bucket[:1]
    orders = [(share[a:b], step.weights[share[a:b]]) for a, b in pieces] + [(idle, np.zeros(1))] * (count - len(pieces))
    step_weight = float(step.weights.sum())
    return [
        MicroBatch(
            tuple(step.rows[places].tolist()),
            tuple(step.seeds[places].tolist()),
            tuple(weights.tolist()),
            last=number == count - 1,
            step_weight=step_weight,
            step_samples=len(step),
        )
        for number, (places, weights) in enumerate(orders)
    ]


def _pieces(bucket: NDArray[np.int32], batch_size: int, at_least: int) -> list[tuple[int, int]]:
    """Where to cut a share that is sorted by bucket: (first, last) of pieces, balanced within each bucket."""
    if not len(bucket):
        return []
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
