"""Opening picture files: sizes from headers only, and decoding to 8-bit RGB in the orientation the camera
meant."""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image, UnidentifiedImageError

from modules.config.concept import PICTURE_SUFFIXES

SUFFIXES = PICTURE_SUFFIXES
# Pictures to a person, but not to Tandem: listed in the report, so that nobody wonders why they are missing.
UNREAD_SUFFIXES = frozenset(
    {".gif", ".tif", ".tiff", ".avif", ".heic", ".heif", ".jxl", ".jp2", ".svg", ".psd", ".ico", ".tga"}
)
# What Pillow's readers raise on damaged files, by trial: each plugin has its own habits.
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silences Pillow's warnings: what matters is raised and listed, the rest would only interrupt the
    progress bar.

    Its limit for huge pictures stays: twice Image.MAX_IMAGE_PIXELS, 179 million pixels, raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_size(path: str) -> tuple[int, int]:
    """(width, height) as a viewer would show the picture, from the header alone; raises one of BROKEN."""
    with Image.open(path, formats=_FORMATS) as image:
        width, height = image.size
        return (height, width) if _orientation(image) >= 5 else (width, height)


def decode(data: bytes, size: tuple[int, int], shortest: tuple[int, int]) -> Image.Image:
    """The whole picture, upright, in 8-bit RGB, transparent parts on white; raises one of BROKEN, also where
    it does not have the `size` (width, height) it is known to have.

    A JPEG may come out smaller than it is, but at least twice `shortest` (width, height): decoding a
    photograph at a fraction of its size saves most of the time.
    """
    image = _open(data)
    orientation = _orientation(image)
    if image.size != (size[::-1] if orientation >= 5 else size):
        raise ValueError(f"it is {image.size[0]}x{image.size[1]} now")
    image.draft(None, (2 * shortest[1], 2 * shortest[0]) if orientation >= 5 else (2 * shortest[0], 2 * shortest[1]))
    return _upright(_to_rgb(image), orientation)


def decode_mask(data: bytes) -> Image.Image:
    """A mask as 8-bit grey, upright, at its own size; raises one of BROKEN."""
    image = _open(data)
    orientation = _orientation(image)
    return _upright(_to_rgb(image).convert("L"), orientation)


def explain(error: BaseException) -> str:
    """Why a file cannot be used, in words."""
    if isinstance(error, Image.DecompressionBombError):
        return "skipped: huge, more than 179 million pixels; scale it down"
    if isinstance(error, UnidentifiedImageError):
        return "skipped: not a PNG, JPEG, WebP or BMP picture, whatever its name says"
    if isinstance(error, OSError) and error.errno is not None:
        return f"skipped: cannot be read ({error.strerror})"
    return f"skipped: damaged or incomplete ({error})"


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=_FORMATS)


def _orientation(image: Image.Image) -> int:
    # PNG's getexif() would decode the whole picture to look for a late EXIF chunk; the header's is what we go
    # by, when sizes are read and when pictures are decoded, so the two always agree.
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    return orientation if isinstance(orientation, int) and orientation in _TURNS else 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _from_16_bit(image).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(paper, layer).convert("RGB")
    return image.convert("RGB")


def _from_16_bit(image: Image.Image) -> Image.Image:
    # Pillow's own conversion cuts off at 255 and would turn such pictures white.
    levels = np.asarray(image).astype(np.int64)
    return Image.fromarray(np.clip(levels // 257, 0, 255).astype(np.uint8))
