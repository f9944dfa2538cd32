"""Draw the demo's training images: python scripts/make_demo_data.py [FOLDER] [--count N] [--seed N].

The same arguments always give the same files. A complete folder is left alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.common import prepare_program

prepare_program()

from modules.run.console import echo, warn
from scripts.demo_shapes import (
    HELD_OUT,
    SIZES,
    draw_image,
    drawn_folder,
    is_stamped,
    names_in,
    reach,
    scenes,
    whole_number,
)

STAMP = "made_by_make_demo_data.json"  # written last: a folder that has it is complete


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 if the folder cannot be written."""
    parser = argparse.ArgumentParser(description="Draw captioned images of coloured shapes for the demo.")
    parser.add_argument("folder", nargs="?", default="data/demo", type=Path)
    parser.add_argument("--count", default=1200, type=whole_number(1, 99_999), help="number of images, 1 to 99999")
    parser.add_argument("--seed", default=0, type=int)
    given = parser.parse_args(arguments)
    try:
        made = make_demo_data(given.folder, count=given.count, seed=given.seed)
    except OSError as error:
        warn(f"{given.folder}: the demo images cannot be written ({error.strerror or error}).")
        return 2
    echo(f"{given.folder}: {given.count} images" + ("" if made else " (already there)"))
    return 0


def make_demo_data(folder: Path, *, count: int = 1200, seed: int = 0) -> bool:
    """Fill `folder` and return True; False if it already holds exactly these images.

    Raises FileExistsError if the folder holds anything but an earlier demo: user files are never deleted.
    """
    stamp = json.dumps({"version": 1, "count": count, "seed": seed})
    held = names_in(folder)
    if held == _names(count) and is_stamped(folder / STAMP, stamp):
        return False
    if held and not (STAMP in held and held <= _names(len(held))):
        raise FileExistsError("it holds other files; name an empty or a new folder")
    with drawn_folder(folder) as unfinished:
        _draw_all(unfinished, count, seed)
        (unfinished / STAMP).write_text(stamp, encoding="utf-8")
    return True


def _names(count: int) -> set[str]:
    return {STAMP, *(f"{number:05d}.{kind}" for number in range(count) for kind in ("png", "txt"))}


def _draw_all(folder: Path, count: int, seed: int) -> None:
    shown = [scene for scene in scenes() if scene not in HELD_OUT]
    sizes = list(SIZES.values())
    for number in range(count):
        scene = shown[number % len(shown)]
        width, height = sizes[(number + number // len(shown)) % len(sizes)]  # the aspect ratio changes every round
        rng = random.Random(f"{seed}/{number}")  # seeded per image: a larger count only adds images
        short = min(width, height)
        scale = short * rng.uniform(0.48, 0.58)
        room = min(0.07 * short, short / 2 - reach(scene.shape) * scale)  # keeps the whole shape inside
        centre = (width / 2 + rng.uniform(-room, room), height / 2 + rng.uniform(-room, room))
        image = draw_image(scene, width, height, centre, scale)
        name = f"{number:05d}"
        image.save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(scene.caption + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
