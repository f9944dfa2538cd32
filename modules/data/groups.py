"""Which pictures are encoded together: a function of what is missing, whoever encodes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.int64]

_PIXELS_AT_ONCE = 1 << 20  # four pictures of 512 x 512, or one of 1024 x 1024, keep a GPU busy


@dataclass(frozen=True)
class Groups:
    """Rows of the index in groups of one bucket and at most `size` pictures each."""

    size: int
    rows: Rows  # those of each group in a row
    first: Rows  # [groups], where each group begins in `rows`
    last: Rows  # [groups], where it ends

    def __len__(self) -> int:
        """How many pictures there are in all groups."""
        return int((self.last - self.first).sum())

    def __iter__(self) -> Iterator[list[int]]:
        for first, last in zip(self.first.tolist(), self.last.tolist(), strict=True):
            yield self.rows[first:last].tolist()

    def share(self, position: int, count: int) -> Groups:
        """The part of one of `count` ranks that fill a cache together: every count-th group."""
        return replace(self, first=self.first[position::count], last=self.last[position::count])


def make_groups(work: Rows, buckets: NDArray[np.int32], size: int) -> Groups:
    """The rows of `work`, which ascend, in groups; only the last group of a bucket may have fewer than `size`.

    `buckets` is the index column [all rows].
    """
    by_bucket = work[np.argsort(buckets[work], kind="stable")]
    begins = np.flatnonzero(np.diff(buckets[by_bucket], prepend=-1))  # of buckets
    place = np.arange(len(work)) - np.repeat(begins, np.diff(begins, append=len(work)))
    first = np.flatnonzero(place % size == 0)
    last = np.append(first, len(work))[1:]
    in_order = np.argsort(by_bucket[first])  # as the index has them, so that pictures of a folder come together
    return Groups(size, by_bucket, first[in_order], last[in_order])


def pictures_at_once(wanted: int | None, resolution: int, device: str) -> int:
    """`cache_batch_size`, or where it is not set what suits the kind of `device`, such as "cpu" or "cuda".

    A CPU is as fast with one picture at a time (benchmarks/diffusion.py).
    """
    if wanted is not None:
        return wanted
    return 1 if device == "cpu" else max(1, min(16, _PIXELS_AT_ONCE // resolution**2))
