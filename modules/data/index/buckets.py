"""Aspect ratio buckets: a few sizes of about equal area, so that images of similar shape are batched with little
cropping."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The aspect ratios of cameras and screens, so that most photographs fit one exactly. Few on purpose: with a bucket
# per multiple of 8, a small dataset would split into batches of one.
_WIDE_ASPECTS = (5 / 4, 4 / 3, 3 / 2, 16 / 9, 2.0, 5 / 2, 3.0, 4.0)


@dataclass(frozen=True, order=True)
class Bucket:
    """The size in pixels of all images of one bucket."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def make_buckets(resolution: int, size_step: int, bucketing: bool) -> tuple[Bucket, ...]:
    """Buckets of about resolution² pixels from 1:4 (tall) to 4:1 (wide), both sides multiples of `size_step` pixels.

    Sorted by width / height; a single square without `bucketing`.
    """
    aspects = (1.0, *_WIDE_ASPECTS, *(1 / aspect for aspect in _WIDE_ASPECTS)) if bucketing else (1.0,)
    sizes = {_size(resolution, size_step, aspect) for aspect in aspects}
    return tuple(sorted(sizes, key=lambda bucket: (bucket.width / bucket.height, bucket.width)))


def assign_buckets(
    buckets: tuple[Bucket, ...], width: NDArray[np.int32], height: NDArray[np.int32]
) -> NDArray[np.int32]:
    """int32 [n]: for each image, the bucket of nearest aspect ratio (2:1 is as far from 1:1 as 1:2 is)."""
    aspects = np.array([bucket.width / bucket.height for bucket in buckets])
    # Division and square root are correctly rounded in IEEE arithmetic, logarithms are not, and every node of a run
    # must find the same buckets.
    borders = np.sqrt(aspects[:-1] * aspects[1:])
    return np.searchsorted(borders, width / np.maximum(height, 1)).astype(np.int32)


def _size(resolution: int, size_step: int, aspect: float) -> Bucket:
    def rounded(side: float) -> int:
        return max(1, math.floor(side / size_step + 0.5)) * size_step

    return Bucket(rounded(resolution / math.sqrt(aspect)), rounded(resolution * math.sqrt(aspect)))
