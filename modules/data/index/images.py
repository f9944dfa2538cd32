"""Opening image files: sizes from headers alone, and decoding to 8-bit RGB with the EXIF orientation applied."""

from __future__ import annotations

import contextlib
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, UnidentifiedImageError

from modules.files import FileFault, file_size
from modules.files.images import check_png, is_truncated, memory_to_decode, open_image

# Images that Tandem does not read: reported, so that nobody wonders why they are missing.
UNSUPPORTED_SUFFIXES = frozenset(
    {".gif", ".tif", ".tiff", ".avif", ".heic", ".heif", ".jxl", ".jp2", ".svg", ".psd", ".ico", ".tga"}
)
# What Pillow's plugins raise on damaged files, found by fuzzing (tests/data/index/test_images.py).
IMAGE_ERRORS = (
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

_STRIP_PIXELS = 4 << 20  # converted at once where a conversion needs several copies
_ORIENTATION_TAG = 0x0112
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@contextlib.contextmanager
def suppress_pillow_warnings() -> Iterator[None]:
    """Silence Pillow's warnings: errors are raised and reported, the rest would only interrupt the progress bar.

    Pillow's limit for huge images stays: more than twice Image.MAX_IMAGE_PIXELS (179 million pixels) raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_image_size(path: str) -> tuple[int, int]:
    """(width, height) in pixels with the orientation applied, from the header alone; raises one of IMAGE_ERRORS."""
    if not file_size(path):
        raise FileFault("is empty")
    with open_image(path) as image:
        width, height = image.size
        swapped = _orientation(image) >= 5
    if is_truncated(path):
        raise ValueError("its end is missing")
    return (height, width) if swapped else (width, height)


def decode_image(data: bytes, size: tuple[int, int], min_size: tuple[int, int]) -> Image.Image:
    """The whole image, upright, in 8-bit RGB, transparent parts on white.

    A JPEG may be decoded at a reduced size, which saves most of the time, but at no less than twice `min_size`
    (width, height). Raises one of IMAGE_ERRORS, also if the image does not have the indexed `size` (width, height).
    """
    check_png(data)
    with open_image(data) as image:
        orientation = _orientation(image)
        if image.size != (size[::-1] if orientation >= 5 else size):
            raise ValueError(f"it is {image.size[0]}x{image.size[1]} now")
        wanted = (2 * min_size[1], 2 * min_size[0]) if orientation >= 5 else (2 * min_size[0], 2 * min_size[1])
        image.draft(None, wanted)
        with memory_to_decode(image):
            return _upright(_to_rgb(image), orientation)


def decode_mask(data: bytes) -> Image.Image:
    """A mask as 8-bit greyscale, upright, at its own size; raises one of IMAGE_ERRORS."""
    check_png(data)
    with open_image(data) as image, memory_to_decode(image):
        return _upright(_to_rgb(image).convert("L"), _orientation(image))


def describe_image_error(error: BaseException) -> str:
    """Why a file cannot be used, in plain words."""
    if isinstance(error, Image.DecompressionBombError):
        return "skipped: huge, more than 179 million pixels; scale it down"
    if isinstance(error, UnidentifiedImageError):
        return "skipped: not a PNG, JPEG, WebP or BMP image, despite its name"
    if isinstance(error, FileFault):
        return f"skipped: it {error}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"skipped: cannot be read ({error.strerror})"
    if "truncated" in str(error).lower():  # Pillow's words differ by format
        return "skipped: damaged or incomplete: the end of the file is missing"
    return f"skipped: damaged or incomplete ({error})"


def _orientation(image: Image.Image) -> int:
    # PNG's getexif() would decode the whole image to look for a late EXIF chunk. Reading sizes and decoding both use
    # the header's alone, so they always agree.
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    return orientation if isinstance(orientation, int) and orientation in _TRANSPOSES else 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_TRANSPOSES[orientation]) if orientation in _TRANSPOSES else image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _in_strips(image, _from_16_bit)
    if image.has_transparency_data:
        return _in_strips(image, _on_white)
    return image.convert("RGB")


def _in_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """The converted image; only the result is as large as the image."""
    width, height = image.size
    result = Image.new("RGB", image.size)
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        result.paste(convert(image.crop((0, top, width, min(top + rows, height)))), (0, top))
    return result


def _on_white(strip: Image.Image) -> Image.Image:
    layer = strip.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _from_16_bit(strip: Image.Image) -> Image.Image:
    # Pillow's own conversion clips at 255 and would turn such images white.
    levels = np.asarray(strip).astype(np.int64)
    return Image.fromarray(np.clip(levels // 257, 0, 255).astype(np.uint8)).convert("RGB")
