"""Which images are encoded together: a function of the missing rows alone, not of the ranks that encode them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

RowIndices: TypeAlias = NDArray[np.int64]

_MAX_BATCH = 16
_PIXELS_PER_BATCH = 1 << 20  # four images of 512 x 512, or one of 1024 x 1024, keep a GPU busy


@dataclass(frozen=True)
class EncodeBatches:
    """Rows of the index in batches of one bucket and at most `size` images each."""

    size: int
    rows: RowIndices  # [rows], the rows of a batch next to each other
    first: RowIndices  # [batches], start of each batch in `rows`
    last: RowIndices  # [batches], its end (exclusive)

    def __len__(self) -> int:
        """The number of images in all batches."""
        return int((self.last - self.first).sum())

    def __iter__(self) -> Iterator[list[int]]:
        for first, last in zip(self.first.tolist(), self.last.tolist(), strict=True):
            yield self.rows[first:last].tolist()

    def for_rank(self, rank: int, count: int) -> EncodeBatches:
        """The batches of one of `count` ranks that fill a cache together: every count-th one."""
        return replace(self, first=self.first[rank::count], last=self.last[rank::count])


def make_encode_batches(
    rows: RowIndices, buckets: NDArray[np.int32], size: int, frames: Sequence[int] = ()
) -> EncodeBatches:
    """The given rows (ascending) in batches; only the last batch of a bucket may have fewer than `size` images, or than
    `clip_batch_size` of clips.

    `buckets` is the index column [all rows], `frames` those of each bucket; without, all have images.
    """
    by_bucket = rows[np.argsort(buckets[rows], kind="stable")]
    bucket_start = np.flatnonzero(np.diff(buckets[by_bucket], prepend=-1))
    position = np.arange(len(rows)) - np.repeat(bucket_start, np.diff(bucket_start, append=len(rows)))  # in its bucket
    sizes = np.array([clip_batch_size(size, count) for count in frames] or [size])
    first = np.flatnonzero(position % (sizes[buckets[by_bucket]] if len(frames) else size) == 0)
    last = np.append(first, len(rows))[1:]
    index_order = np.argsort(by_bucket[first])  # so that images of one folder are read together
    return EncodeBatches(size, by_bucket, first[index_order], last[index_order])


def clip_batch_size(size: int, frames: int) -> int:
    """How many clips are encoded together where `size` images are."""
    return max(1, size // frames)


def encode_batch_size(cache_batch_size: int | None, resolution: int, device_type: str) -> int:
    """The setting `cache_batch_size`; if it is not set, a default for the device type ("cpu", "cuda").

    A CPU is as fast with one image at a time (benchmarks/diffusion.py).
    """
    if cache_batch_size is not None:
        return cache_batch_size
    return 1 if device_type == "cpu" else max(1, min(_MAX_BATCH, _PIXELS_PER_BATCH // resolution**2))
