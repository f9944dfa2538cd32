"""A mask drawn over its image."""

from __future__ import annotations

from typing import Final

from PIL import Image

_TINT: Final = (214, 48, 49)
_STRENGTH: Final = 0.65


def overlay(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The image with red over the black parts of the mask, which may have another size."""
    red = Image.blend(image, Image.new("RGB", image.size, _TINT), _STRENGTH)
    fitted = mask.convert("L")
    if fitted.size != image.size:
        fitted = fitted.resize(image.size, Image.Resampling.BILINEAR)
    return Image.composite(image, red, fitted)
