"""Views: the ways one picture is scaled, cut and mirrored to fill its bucket; numbers only, no pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept
from modules.data.buckets import Bucket
from modules.data.hashing import fractions, hash_words


@dataclass(frozen=True)
class Crop:
    """One view: the picture is scaled to `resized` (height, width), then `bucket` is cut out at (top,
    left)."""

    resized: tuple[int, int]
    top: int
    left: int
    bucket: Bucket
    flipped: bool

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The same cut as (left, top, right, bottom) in a picture or mask of the given size."""
        across, down = width / self.resized[1], height / self.resized[0]
        right, bottom = self.left + self.bucket.width, self.top + self.bucket.height
        return (
            self.left * across,
            self.top * down,
            min(float(width), right * across),
            min(float(height), bottom * down),
        )


def count_views(concept: Concept, validation: bool) -> int:
    """How many views of each picture of a concept are cached; a validation picture has one, so that it never
    varies."""
    if validation:
        return 1
    return (concept.image_variations if concept.crop_jitter else 1) * (2 if concept.horizontal_flip else 1)


def crop_numbers(
    width: NDArray[np.int32],
    height: NDArray[np.int32],
    bucket_size: NDArray[np.int32],
    path_hash: NDArray[np.uint64],
    variation: int,
) -> NDArray[np.int32]:
    """Crops of many pictures at once: int32 [n, 4] of resized height, resized width, top, left.

    `bucket_size` is [n, 2] (height, width). Variation 0 is cut from the middle; each other one has its own
    place, drawn from the path below the concept folder, so that it stays the same when the whole folder
    moves.
    """
    target = bucket_size.astype(np.float64)
    scale = np.maximum(target[:, 0] / height, target[:, 1] / width)
    resized_height = np.maximum(bucket_size[:, 0], np.floor(height * scale + 0.5).astype(np.int32))
    resized_width = np.maximum(bucket_size[:, 1], np.floor(width * scale + 0.5).astype(np.int32))
    spare_height = resized_height - bucket_size[:, 0]
    spare_width = resized_width - bucket_size[:, 1]
    if variation == 0:
        top, left = spare_height // 2, spare_width // 2
    else:
        top = np.floor(fractions(hash_words(path_hash, variation, 0)) * (spare_height + 1)).astype(np.int32)
        left = np.floor(fractions(hash_words(path_hash, variation, 1)) * (spare_width + 1)).astype(np.int32)
    return np.stack([resized_height, resized_width, top, left], axis=1).astype(np.int32)


def split_view(view: int, concept: Concept) -> tuple[int, bool]:
    """A view's number as (variation, flipped)."""
    return (view // 2, view % 2 == 1) if concept.horizontal_flip else (view, False)
