"""The shapes, colours and backgrounds of the demo, how an image of them is drawn, and the folder of the images.

make_demo_data.py and make_class_data.py draw them, check_demo.py recognises them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from modules.files import PARTIAL, FileFault, read_text, remove_partial, whole_path

Colour = tuple[int, int, int]
Point = tuple[float, float]

COLOURS: dict[str, Colour] = {
    "red": (220, 30, 35),
    "orange": (250, 135, 20),
    "yellow": (250, 220, 40),
    "green": (30, 160, 60),
    "cyan": (40, 205, 220),
    "blue": (35, 70, 220),
    "purple": (135, 40, 185),
    "pink": (250, 130, 195),
}
BACKGROUNDS: dict[str, Colour] = {"white": (250, 250, 250), "grey": (128, 128, 128), "black": (12, 12, 12)}

# Far enough apart to land in different aspect ratio buckets: 1:1, 5:3 and 3:5. (width, height) in pixels.
SIZES: dict[str, tuple[int, int]] = {"square": (96, 96), "landscape": (120, 72), "portrait": (72, 120)}


@dataclass(frozen=True)
class Scene:
    """A shape in one colour on a background."""

    shape: str
    colour: str
    background: str

    @property
    def caption(self) -> str:
        """Its caption, in training and as a prompt."""
        article = "an" if self.colour[0] in "aeiou" else "a"
        return f"{article} {self.colour} {self.shape} on a {self.background} background"


# Never shown in training: they test whether the model combines words rather than memorising images.
HELD_OUT = (
    Scene("circle", "red", "grey"),
    Scene("square", "blue", "white"),
    Scene("triangle", "yellow", "black"),
    Scene("circle", "green", "black"),
    Scene("square", "orange", "grey"),
    Scene("triangle", "purple", "white"),
)


def scenes() -> list[Scene]:
    """Every combination, including the held-out ones."""
    return [Scene(*words) for words in itertools.product(OUTLINES, COLOURS, BACKGROUNDS)]


def draw_image(scene: Scene, width: int, height: int, centre: Point, scale: float) -> Image.Image:
    """The scene's shape, its outline scaled to `scale` pixels and its centre of mass at `centre` (pixels)."""
    image = Image.new("RGB", (width, height), BACKGROUNDS[scene.background])
    image.paste(COLOURS[scene.colour], mask=draw_coverage(scene.shape, width, height, centre, scale))
    return image


def draw_coverage(shape: str, width: int, height: int, centre: Point, scale: float) -> Image.Image:
    """Greyscale image of how much of each pixel the shape covers, 0 to 255."""
    fine = 8  # supersampling for smooth edges
    canvas = Image.new("L", (width * fine, height * fine), 0)
    outline = [((centre[0] + x * scale) * fine, (centre[1] + y * scale) * fine) for x, y in OUTLINES[shape]]
    ImageDraw.Draw(canvas).polygon(outline, fill=255)
    return canvas.resize((width, height), Image.Resampling.BOX)


def reach(shape: str) -> float:
    """The largest distance of the outline from its centre, at a scale of 1."""
    return max(math.hypot(x, y) for x, y in OUTLINES[shape])


def area(shape: str) -> float:
    """The area inside the outline, at a scale of 1."""
    corners = OUTLINES[shape]
    following = corners[1:] + corners[:1]
    return abs(sum(x * b - a * y for (x, y), (a, b) in zip(corners, following, strict=True))) / 2


def _polygon(corners: int, radius: float, first_angle: float) -> tuple[Point, ...]:
    angles = [first_angle + 2 * math.pi * corner / corners for corner in range(corners)]
    return tuple((radius * math.cos(angle), radius * math.sin(angle)) for angle in angles)


# Around the centre of mass, y downwards; circle and square are 1 wide.
OUTLINES: dict[str, tuple[Point, ...]] = {
    "circle": _polygon(64, 0.5, 0.0),
    "square": _polygon(4, math.sqrt(0.5), math.pi / 4),
    "triangle": _polygon(3, 0.7, -math.pi / 2),
}


def names_in(folder: Path) -> set[str]:
    """What a folder holds; nothing if it does not exist. Raises OSError."""
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def is_stamped(file: Path, stamp: str) -> bool:
    """Whether a file holds this text, which says how the images beside it were drawn. Raises OSError."""
    try:
        return read_text(file) == stamp
    except FileFault:  # a pipe, or no text
        return False


@contextmanager
def drawn_folder(folder: Path) -> Iterator[Path]:
    """A new folder to draw into, which takes the place of `folder` with all that it holds at the end of the block.

    Raises OSError, also if this process works in `folder`, which would then be no longer there.
    """
    folder = whole_path(folder)
    if Path.cwd().is_relative_to(folder):
        raise FileExistsError("it is the current folder, or holds it; name another one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(folder.parent, only="")  # of programs that were killed here
    with tempfile.TemporaryDirectory(prefix=f"{PARTIAL}{os.getpid()}-", dir=folder.parent) as temporary:
        unfinished = Path(temporary) / "images"
        unfinished.mkdir()
        yield unfinished
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    """The type of a command line argument: a number of images within these bounds."""

    def convert(text: str) -> int:
        if not (text.isdigit() and lowest <= int(text) <= highest):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {lowest} to {highest}")
        return int(text)

    return convert
