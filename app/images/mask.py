"""A mask that is painted: strokes, undo, and the file beside its image."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final, TypeAlias

from PIL import Image, ImageChops, ImageDraw

from modules.config.file_access import mode_beside
from modules.files import FileFault, check_changeable, replacing
from modules.files.images import open_image, upright_alpha, upright_rgb
from modules.files.videos import is_video, read_poster

TRAINED: Final = 255
LEFT_OUT: Final = 0
MASK_FORMATS: Final = {".png": "PNG", ".bmp": "BMP", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"} | dict.fromkeys(
    (".tif", ".tiff"), "TIFF"
)
_EXACT: Final[dict[str, dict[str, int]]] = {
    "JPEG": {"quality": 100},
    "WEBP": {"lossless": True},
}  # as far as they can be
_MOST_STEPS: Final = 100  # that can be undone; a mask takes a few kilobytes compressed
Point: TypeAlias = tuple[float, float]  # x, y in pixels of the image


class Mask:
    """8-bit greyscale of the image's size, `TRAINED` where the image is trained and `LEFT_OUT` where it is not."""

    def __init__(self, pixels: Image.Image) -> None:
        self.pixels = pixels
        self._steps: list[bytes] = []

    @property
    def can_undo(self) -> bool:
        """Whether something was painted that is not undone."""
        return bool(self._steps)

    def begin(self) -> None:
        """What follows, up to the next `begin`, is one step of `undo`."""
        self._steps = [*self._steps[1 - _MOST_STEPS :], zlib.compress(self.pixels.tobytes(), 1)]

    def stroke(self, start: Point, end: Point, radius: float, value: int) -> None:
        """A line with round ends."""
        draw_stroke(self.pixels, start, end, radius, value)

    def fill(self, value: int) -> None:
        """All of it."""
        self.begin()
        self.pixels.paste(value, (0, 0, *self.pixels.size))

    def invert(self) -> None:
        """What is trained is left out, and the other way round."""
        self.begin()
        self.pixels = ImageChops.invert(self.pixels)

    def undo(self) -> None:
        """Take back the last step, if there is one."""
        if self._steps:
            self.pixels = Image.frombytes("L", self.pixels.size, zlib.decompress(self._steps.pop()))

    def save(self, file: Path) -> None:
        """Write it in place of an older one. Raises OSError or FileFault, and the older one stays."""
        check_writable(file)
        written = MASK_FORMATS[file.suffix.lower()]
        mode = mode_beside(file)
        with replacing(file) as partial:
            try:
                self.pixels.save(partial, format=written, **_EXACT.get(written, {}))
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                width, height = self.pixels.size
                raise FileFault(
                    f"cannot hold {width} × {height} pixels as {written}: use a mask that is a PNG"
                ) from error
            if mode:
                partial.chmod(mode)


def check_writable(file: Path) -> None:
    """Raises OSError for a file that is only read, FileFault for one of a format that masks are not written in."""
    check_changeable(file)
    if file.suffix.lower() not in MASK_FORMATS:
        raise FileFault(
            f"ends in {file.suffix!r}; masks are written as {', '.join(MASK_FORMATS)}: set the mask file suffix"
        )


def draw_stroke(pixels: Image.Image, start: Point, end: Point, radius: float, value: int) -> None:
    """A line with round ends on a greyscale image."""
    pen = ImageDraw.Draw(pixels)
    pen.line([start, end], fill=value, width=max(1, round(2 * radius)))
    for x, y in (start, end):
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=value)


def open_mask(image: Path, file: Path) -> tuple[Image.Image, Mask]:
    """An image as it is trained, or the first frame of a video, and the mask in `file`, or one that leaves out
    everything if there is no file; its own transparency if that is the image itself.

    Raises OSError or FileFault if one of them cannot be read.
    """
    try:
        if is_video(image):
            rgb = read_poster(image)
        else:
            with open_image(image) as opened:
                rgb = upright_rgb(opened)
        if not os.path.exists(file):
            return rgb, Mask(Image.new("L", rgb.size, LEFT_OUT))
        with open_image(file) as opened:
            mask = upright_alpha(opened) if file == image else upright_rgb(opened).convert("L")
    except (OSError, FileFault):
        raise
    except Exception as error:  # Pillow's readers raise any exception on damaged files
        raise FileFault(f"is damaged or too large ({error})") from error
    return rgb, Mask(mask if mask.size == rgb.size else mask.resize(rgb.size, Image.Resampling.BILINEAR))
