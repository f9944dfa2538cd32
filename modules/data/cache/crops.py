"""Views of an image: how it is scaled, cropped and mirrored to fill its bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from modules.config import Concept
from modules.data.batch import Example
from modules.data.cache.augmentation import UNCHANGED, Augmentation, change_colours, resized_and_turned
from modules.data.index.buckets import Bucket
from modules.data.index.images import IMAGE_ERRORS, decode_image, describe_image_error
from modules.data.index.index import Index
from modules.data.rng import hash_uint64, to_unit_interval


@dataclass(frozen=True)
class Crop:
    """One view: the image is scaled to `resized` (height, width) pixels, cropped to `bucket` at (top, left), mirrored
    if `flipped`, and then changed. Of a video, the clip that begins at the moment `start`."""

    resized: tuple[int, int]
    top: int
    left: int
    bucket: Bucket
    flipped: bool
    change: Augmentation = UNCHANGED
    start: int = 0

    @property
    def left_as_seen(self) -> int:
        """The left edge of the crop in the mirrored image, if it is mirrored: there its right edge comes first."""
        return self.resized[1] - self.left - self.bucket.width if self.flipped else self.left

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The same crop as (left, top, right, bottom) in pixels of an image or mask of the given size."""
        across, down = width / self.resized[1], height / self.resized[0]
        right, bottom = self.left + self.bucket.width, self.top + self.bucket.height
        return (
            self.left * across,
            self.top * down,
            min(float(width), right * across),
            min(float(height), bottom * down),
        )


def count_views(concept: Concept, validation: bool, several_clips: bool = False) -> int:
    """How many views of each image of a concept are cached, or of each video of which there may be `several_clips`;
    validation images have one, so that they never vary."""
    if validation:
        return 1
    variations = concept.clip_variations if several_clips else concept.variations
    return variations * (2 if concept.horizontal_flip else 1)


def compute_crops(
    width: NDArray[np.int32],
    height: NDArray[np.int32],
    bucket_size: NDArray[np.int32],
    path_hash: NDArray[np.uint64],
    variation: int,
) -> NDArray[np.int32]:
    """Crops of n images: int32 [n, 4] of resized height, resized width, top, left, in pixels.

    `bucket_size` is [n, 2] (height, width), the other arrays [n]. Variation 0 is the centre crop; the position of
    others is a hash of the path below the concept folder, so that it stays the same when the whole folder moves.
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
        top = np.floor(to_unit_interval(hash_uint64(path_hash, variation, 0)) * (spare_height + 1)).astype(np.int32)
        left = np.floor(to_unit_interval(hash_uint64(path_hash, variation, 1)) * (spare_width + 1)).astype(np.int32)
    return np.stack([resized_height, resized_width, top, left], axis=1).astype(np.int32)


def split_view(view: int, concept: Concept) -> tuple[int, bool]:
    """A view's number as (variation, flipped)."""
    return (view // 2, view % 2 == 1) if concept.horizontal_flip else (view, False)


def crop_example(
    image: Image.Image,
    mask: Image.Image | None,
    with_mask: bool,
    captions: tuple[str, ...],
    original_size: tuple[int, int],
    crop: Crop,
) -> Example:
    """The example of one crop. `original_size` is (height, width); the mask may have another size than the image.

    With `with_mask`, an image without a mask gets an all-white one, so that every example has one.
    """
    mask_pixels = None
    if with_mask:
        size = (crop.bucket.width, crop.bucket.height)
        mask_pixels = _pixels(_crop(mask, crop) if mask is not None else Image.new("L", size, 255))
    return Example(
        pixels=change_colours(_pixels(_crop(image, crop)), crop.change),
        mask=mask_pixels,
        captions=captions,
        original_size=original_size,
        crop=(crop.top, crop.left_as_seen),
        flipped=crop.flipped,
    )


def clip_example(
    frames: Iterable[Image.Image],
    mask: Image.Image | None,
    with_mask: bool,
    captions: tuple[str, ...],
    original_size: tuple[int, int],
    crop: Crop,
) -> Example:
    """As `crop_example`, of the frames of a clip, which are all cropped, turned and coloured alike; the mask is that of
    all frames."""
    shape, plain = (crop.bucket.frames, crop.bucket.height, crop.bucket.width), replace(crop, change=_turn(crop.change))
    pixels = torch.empty(3, *shape, dtype=torch.uint8)
    found: Example | None = None
    for number, frame in enumerate(frames):
        if found is None:
            found = crop_example(frame, mask, with_mask, captions, original_size, plain)
        pixels[:, number] = found.pixels if number == 0 else _pixels(_crop(frame, crop))
    assert found is not None
    # A single frame of a video is an image.
    return replace(found, pixels=change_colours(pixels if crop.bucket.frames > 1 else pixels[:, 0], crop.change))


def _turn(change: Augmentation) -> Augmentation:
    """Its rotation without its colours."""
    return Augmentation(angle=change.angle)


def mirrored(example: Example, crop: Crop) -> Example:
    """The example of a mirrored crop from that of the same crop as it is."""
    mask = None if example.mask is None else example.mask.flip(-1)
    place = crop.top, crop.left_as_seen
    return replace(example, pixels=example.pixels.flip(-1), mask=mask, crop=place, flipped=True)


def decode_references(index: Index, row: int, files: Sequence[bytes]) -> tuple[list[Image.Image], list[Image.Image]]:
    """The references of a row, whole, in the sizes of its bucket, and what text encoders see of them, if the bucket has
    sizes of that; `files` are their contents.

    Raises one of IMAGE_ERRORS; of a damaged one the ValueError says which."""
    bucket = index.buckets[index.bucket[row]]
    found, pictures = list[Image.Image](), list[Image.Image]()
    for data, file, *sizes in zip(
        files, index.references(row), *filter(None, (bucket.references, bucket.pictures)), strict=True
    ):
        try:
            largest = max(width for _, width in sizes), max(height for height, _ in sizes)
            image = decode_image(data, (file.width, file.height), min_size=largest)
        except IMAGE_ERRORS as error:
            reason = describe_image_error(error).removeprefix("skipped: ")
            raise ValueError(f"its reference image {file.path}: {reason}") from error
        for images, (height, width) in zip((found, pictures), sizes, strict=False):
            images.append(image.resize((width, height), Image.Resampling.LANCZOS))
    return found, pictures


def with_references(
    example: Example, references: Sequence[Image.Image], pictures: Sequence[Image.Image], change: Augmentation
) -> Example:
    """The example with its references and what text encoders see of them, mirrored and changed as it is."""

    def seen(image: Image.Image) -> Tensor:
        turned = resized_and_turned(image, image.size, None, flip=example.flipped, angle=change.angle)
        return change_colours(_pixels(turned), change)

    return replace(example, references=tuple(map(seen, references)), pictures=tuple(map(seen, pictures)))


def _crop(image: Image.Image, crop: Crop) -> Image.Image:
    size, box = (crop.bucket.width, crop.bucket.height), crop.box(*image.size)
    return resized_and_turned(image, size, box, flip=crop.flipped, angle=crop.change.angle)


def _pixels(image: Image.Image) -> Tensor:
    """uint8 [C, H, W]."""
    values = np.array(image)
    values = values[:, :, None] if values.ndim == 2 else values
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))
