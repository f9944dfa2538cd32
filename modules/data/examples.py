"""One view of a picture and its mask, cut to the bucket."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from modules.data.batch import Example
from modules.data.crops import Crop


def cut_example(
    picture: Image.Image,
    mask: Image.Image | None,
    with_mask: bool,
    captions: tuple[str, ...],
    original_size: tuple[int, int],
    crop: Crop,
) -> Example:
    """The example of one crop. The mask may have another size than the picture, but shows the same; a picture
    without one counts whole, so that all examples of a masked training have masks. `original_size` is
    (height, width)."""
    mask_pixels = None
    if with_mask:
        size = (crop.bucket.width, crop.bucket.height)
        mask_pixels = _pixels(_cut(mask, crop) if mask is not None else Image.new("L", size, 255))
    return Example(
        pixels=_pixels(_cut(picture, crop)),
        mask=mask_pixels,
        captions=captions,
        original_size=original_size,
        crop=(crop.top, crop.left),
        flipped=crop.flipped,
    )


def _cut(image: Image.Image, crop: Crop) -> Image.Image:
    # Scaling only the part that is kept gives the same pixels as scaling all and cutting, for less work.
    size = (crop.bucket.width, crop.bucket.height)
    cut = image.resize(size, Image.Resampling.LANCZOS, box=crop.box(*image.size))
    return cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flipped else cut


def _pixels(image: Image.Image) -> Tensor:
    """uint8 [C, H, W]."""
    values = np.array(image)
    values = values[:, :, None] if values.ndim == 2 else values
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))
