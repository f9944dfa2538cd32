"""Aspect ratio buckets: a few sizes of about equal area, so that images of similar shape are batched with little
cropping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from modules.config import TrainConfig
from modules.config.sections.data import DataSettings
from modules.data.index.references import unpack_references

# The aspect ratios of cameras and screens, so that most photographs fit one exactly, and some between them. Few on
# purpose: with a bucket per multiple of 8, a small dataset would split into batches of one.
_WIDE_ASPECTS = (9 / 8, 5 / 4, 4 / 3, 3 / 2, 8 / 5, 16 / 9, 2.0, 7 / 3, 8 / 3, 3.0, 7 / 2, 4.0)
_FEWER_WIDE_ASPECTS = (5 / 4, 4 / 3, 3 / 2, 16 / 9, 2.0, 5 / 2, 3.0, 4.0)  # all that there were up to 0.3.0


@dataclass(frozen=True, order=True)
class Bucket:
    """The size in pixels of all images of one bucket; (height, width) of each of the references they have, and of what
    text encoders see of these, if that has sizes of its own; and their frames, 1 of stills."""

    height: int
    width: int
    references: tuple[tuple[int, int], ...] = ()
    pictures: tuple[tuple[int, int], ...] = ()
    frames: int = 1

    def __str__(self) -> str:
        """Such as 512x768, of clips 512x768x17, or with a reference 512x768+512x512."""
        own = f"{self.width}x{self.height}" + (f"x{self.frames}" if self.frames > 1 else "")
        return "+".join([own, *(f"{width}x{height}" for height, width in self.references)])

    @property
    def pixels(self) -> int:
        """Of all frames of an image or clip, without references."""
        return self.height * self.width * self.frames


def make_buckets(
    resolution: int, size_step: int, bucketing: bool, largest_aspect: float = 4.0, fewer: bool = False
) -> tuple[Bucket, ...]:
    """Up to 25 buckets, or 17 `fewer`, of about resolution² pixels from 1:`largest_aspect` (tall) to
    `largest_aspect`:1 (wide), both sides multiples of `size_step` pixels.

    Sorted by width / height; a single square without `bucketing`.
    """
    if not bucketing:
        return (_rounded_size(resolution, size_step, 1.0),)
    aspects, size = (_FEWER_WIDE_ASPECTS, _rounded_size) if fewer else (_WIDE_ASPECTS, _nearest_size)
    wide = [size(resolution, size_step, aspect) for aspect in (1.0, *aspects) if aspect <= largest_aspect]
    return _sorted({*wide, *(Bucket(each.width, each.height) for each in wide)})


def bucket_images(
    settings: DataSettings,
    size_step: int,
    concept: NDArray[np.int32],
    width: NDArray[np.int32],
    height: NDArray[np.int32],
) -> tuple[tuple[Bucket, ...], NDArray[np.int32]]:
    """The buckets of a data set, and int32 [n]: which of them each image is in; the arrays are [n], sizes in pixels.

    Each concept has the buckets of its resolution; with `no_upscale`, an image that is smaller than its bucket has one
    of its own size, down to the step.
    """
    step, longest = math.lcm(size_step, settings.bucket_step or 1), settings.largest_aspect
    resolutions = np.array([settings.resolution_of(each) for each in settings.concepts] or [settings.resolution])
    sizes = np.zeros((len(concept), 2), dtype=np.int64)  # height, width
    found = set[Bucket]()
    for resolution in sorted(set(resolutions.tolist())):
        buckets = make_buckets(resolution, step, settings.aspect_ratio_bucketing, longest, settings.fewer_buckets)
        rows = np.flatnonzero(resolutions[concept] == resolution)
        numbers = assign_buckets(buckets, width[rows], height[rows])
        sizes[rows] = np.array([(each.height, each.width) for each in buckets])[numbers]
        found.update(buckets)
    if settings.no_upscale:
        own = np.stack([height, width], axis=1).astype(np.int64)
        small = (own < sizes).any(axis=1)
        most = own.min(axis=1, keepdims=True) * (longest if settings.aspect_ratio_bucketing else 1)
        sizes[small] = np.maximum(step, np.minimum(own, most).astype(np.int64) // step * step)[small]
        found.update(Bucket(*size) for size in np.unique(sizes[small], axis=0).tolist())
    buckets = _sorted(found)
    keys = np.array([each.height << 32 | each.width for each in buckets])
    order = np.argsort(keys)
    return buckets, order[np.searchsorted(keys[order], sizes[:, 0] << 32 | sizes[:, 1])].astype(np.int32)


def split_by_frames(
    frames: NDArray[np.int32], buckets: tuple[Bucket, ...], bucket: NDArray[np.int32]
) -> tuple[tuple[Bucket, ...], NDArray[np.int32]]:
    """`bucket_images`' result with a bucket for each number of `frames` [n] that images of a size have."""
    if (frames == 1).all():
        return buckets, bucket
    found = [replace(buckets[own], frames=count) for own, count in zip(bucket.tolist(), frames.tolist(), strict=True)]
    return _numbered(found)


def split_by_references(
    config: TrainConfig,
    size_step: int,
    concept: NDArray[np.int32],
    references: Sequence[bytes],
    buckets: tuple[Bucket, ...],
    bucket: NDArray[np.int32],
) -> tuple[tuple[Bucket, ...], NDArray[np.int32]]:
    """`bucket_images`' result with a bucket for each combination of an image's size and those of its references, so
    that all samples of a batch have tensors of the same shapes. `references` [n] are from `pack_references`."""
    if not any(references):
        return buckets, bucket
    step = math.lcm(size_step, config.bucket_step or 1)
    found = list[Bucket]()
    for number, own, packed in zip(concept.tolist(), bucket.tolist(), references, strict=True):
        resolution = config.resolution_of(config.concepts[number])
        originals = [(each.width, each.height) for each in unpack_references(packed)]
        sizes = [config.reference_size(*each, resolution, step) for each in originals]
        pictures = filter(None, (config.picture_size(*each) for each in originals))
        found.append(replace(buckets[own], references=_turned(sizes), pictures=_turned(pictures)))
    return _numbered(found)


def assign_buckets(
    buckets: tuple[Bucket, ...], width: NDArray[np.int32], height: NDArray[np.int32]
) -> NDArray[np.int32]:
    """int32 [n]: for each image, the bucket of nearest aspect ratio (2:1 is as far from 1:1 as 1:2 is)."""
    aspects = np.array([bucket.width / bucket.height for bucket in buckets])
    # Division and square root are correctly rounded in IEEE arithmetic, logarithms are not, and every node of a run
    # must find the same buckets.
    borders = np.sqrt(aspects[:-1] * aspects[1:])
    return np.searchsorted(borders, width / np.maximum(height, 1)).astype(np.int32)


def _numbered(found: Sequence[Bucket]) -> tuple[tuple[Bucket, ...], NDArray[np.int32]]:
    """The different buckets of images, and int32 [n]: which of them each is in."""
    buckets = _sorted(set(found))
    numbers = {each: number for number, each in enumerate(buckets)}
    return buckets, np.array([numbers[each] for each in found], dtype=np.int32)


def _turned(sizes: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(height, width) of each (width, height)."""
    return tuple((height, width) for width, height in sizes)


def _sorted(buckets: set[Bucket]) -> tuple[Bucket, ...]:
    return tuple(sorted(buckets, key=lambda bucket: (bucket.width / bucket.height, bucket.width, bucket)))


def _rounded_size(resolution: int, size_step: int, aspect: float) -> Bucket:
    """Both sides rounded by themselves, which may miss the aspect ratio by half a step of each."""

    def rounded(side: float) -> int:
        return max(1, math.floor(side / size_step + 0.5)) * size_step

    return Bucket(rounded(resolution / math.sqrt(aspect)), rounded(resolution * math.sqrt(aspect)))


def _nearest_size(resolution: int, size_step: int, aspect: float) -> Bucket:
    """Of the four sizes around the exact one, that of nearest aspect ratio; an area that is off counts half as much.

    None has half the area: at twice the step, the exact shape may (16x32 for a resolution of 32).
    """

    def around(side: float) -> list[int]:
        return [each * size_step for each in (math.floor(side / size_step), math.ceil(side / size_step)) if each]

    def misses(size: Bucket) -> float:
        shape, area = size.width / size.height / aspect, size.width * size.height / resolution**2
        return max(shape, 1 / shape) * math.sqrt(max(area, 1 / area))  # no logarithms: see `assign_buckets`

    heights, widths = around(resolution / math.sqrt(aspect)), around(resolution * math.sqrt(aspect))
    sizes = [Bucket(height, width) for height in heights for width in widths if 2 * height * width > resolution**2]
    return min(sizes, key=misses)
