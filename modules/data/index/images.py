"""Opening image files: sizes from headers alone, and decoding to 8-bit RGB with the EXIF orientation applied."""

from __future__ import annotations

import contextlib
import struct
import warnings
import zlib
from collections.abc import Iterator

from PIL import Image, UnidentifiedImageError

from modules.config import ConfigError
from modules.files import FileFault, file_size, open_regular
from modules.files.images import (
    check_png,
    has_transparency,
    is_truncated,
    is_turned,
    open_image,
    upright_alpha,
    upright_rgb,
)
from modules.files.videos import VideoHeader, is_video, read_video_header

# Images that Tandem does not read: reported, so that nobody wonders why they are missing.
UNSUPPORTED_SUFFIXES = frozenset(
    {".gif", ".jp2", ".svg", ".psd", ".ico", ".tga", ".exr", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf"}
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
        swapped = is_turned(image)
    if is_truncated(path):
        raise ValueError("its end is missing")
    return (height, width) if swapped else (width, height)


def read_transparency(path: str) -> bool:
    """Whether an image may have transparent parts, from the header alone; raises one of IMAGE_ERRORS."""
    with open_image(path) as image:
        return has_transparency(image)


def read_video(path: str) -> VideoHeader | None:
    """What a file holds that has a video's name, and may be a still WebP: None. Raises one of IMAGE_ERRORS."""
    return read_video_header(path) if is_video(path) else None


def decode_image(data: bytes, size: tuple[int, int], min_size: tuple[int, int]) -> Image.Image:
    """The whole image, upright, in 8-bit RGB, transparent parts on white.

    A JPEG may be decoded at a reduced size, which saves most of the time, but at no less than twice `min_size`
    (width, height). Raises one of IMAGE_ERRORS, also if the image does not have the indexed `size` (width, height).
    """
    check_png(data)
    with open_image(data) as image:
        if image.size != (size[::-1] if is_turned(image) else size):
            raise ValueError(f"it is {image.size[0]}x{image.size[1]} now")
        return upright_rgb(image, (2 * min_size[0], 2 * min_size[1]))


def read_reference(file: str) -> Image.Image:
    """The image of a file as `decode_image` has it, at its own size, to generate another one from it.

    Raises ConfigError if it cannot be read."""
    try:
        with suppress_pillow_warnings(), open_regular(file) as opened:
            data = opened.read()
            check_png(data)
            with open_image(data) as image:
                return upright_rgb(image)
    except IMAGE_ERRORS as error:
        reason = describe_image_error(error).removeprefix("skipped: ")
        raise ConfigError(f"The reference image {file!r} cannot be used: {reason}.", "Choose another one.") from error


def decode_mask(data: bytes, *, is_alpha: bool = False) -> Image.Image:
    """A mask as 8-bit greyscale, upright, at its own size: that of a mask file, or the transparency of an image
    (`is_alpha`). Raises one of IMAGE_ERRORS."""
    check_png(data)
    with open_image(data) as image:
        return upright_alpha(image) if is_alpha else upright_rgb(image).convert("L")


def describe_image_error(error: BaseException) -> str:
    """Why a file cannot be used, in plain words."""
    if isinstance(error, Image.DecompressionBombError):
        return "skipped: huge, more than 179 million pixels; scale it down"
    if isinstance(error, UnidentifiedImageError):
        return "skipped: no image of a format that Tandem reads, despite its name"
    if isinstance(error, FileFault):
        return f"skipped: it {error}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"skipped: cannot be read ({error.strerror})"
    if "truncated" in str(error).lower():  # Pillow's words differ by format
        return "skipped: damaged or incomplete: the end of the file is missing"
    return f"skipped: damaged or incomplete ({error})"
