"""Draw the images of presets/classifier_demo.yaml: python scripts/make_class_data.py [FOLDER] [--count N] [--seed N].

FOLDER/train and FOLDER/test get a folder for each class, a shape in a colour; the same arguments always give the same
files. A complete folder is left alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.common import prepare_program

prepare_program()

from modules.run.console import echo, warn
from scripts.demo_shapes import (
    BACKGROUNDS,
    COLOURS,
    OUTLINES,
    Scene,
    draw_image,
    drawn_folder,
    is_stamped,
    names_in,
    reach,
    whole_number,
)

STAMP = "made_by_make_class_data.json"  # written last: a folder that has it is complete
SIDE = 36  # pixels
TEST_PART = 5  # one test image for this many training images
CLASSES = tuple(itertools.product(COLOURS, OUTLINES))


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 if the folder cannot be written."""
    parser = argparse.ArgumentParser(description="Draw coloured shapes in class folders, for the classifier demo.")
    parser.add_argument("folder", nargs="?", default="data/classes", type=Path)
    parser.add_argument(
        "--count", default=100, type=whole_number(TEST_PART, 9999), help="training images of each class"
    )
    parser.add_argument("--seed", default=0, type=int)
    given = parser.parse_args(arguments)
    try:
        made = make_class_data(given.folder, count=given.count, seed=given.seed)
    except OSError as error:
        warn(f"{given.folder}: the images cannot be written ({error.strerror or error}).")
        return 2
    echo(f"{given.folder}: {len(CLASSES)} classes" + ("" if made else " (already there)"))
    return 0


def make_class_data(folder: Path, *, count: int = 100, seed: int = 0) -> bool:
    """Fill `folder` with `count` training images of each class and return True; False if it already holds them.

    Raises FileExistsError if the folder holds anything but earlier images of this script.
    """
    stamp = json.dumps({"version": 1, "count": count, "seed": seed})
    held = names_in(folder)
    if STAMP in held and is_stamped(folder / STAMP, stamp):
        return False
    if held and held != {STAMP, "train", "test"}:
        raise FileExistsError("it holds other files; name an empty or a new folder")
    with drawn_folder(folder) as unfinished:
        for part, images in (("train", count), ("test", count // TEST_PART)):
            for colour, shape in CLASSES:
                _draw_class(unfinished / part / f"{colour}_{shape}", colour, shape, images, f"{seed}/{part}")
        (unfinished / STAMP).write_text(stamp, encoding="utf-8")
    return True


def _draw_class(folder: Path, colour: str, shape: str, count: int, seed: str) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        rng = random.Random(f"{seed}/{colour}/{shape}/{number}")  # per image: a larger count only adds images
        scene = Scene(shape, colour, rng.choice(list(BACKGROUNDS)))
        scale = SIDE * rng.uniform(0.55, 0.7)
        room = max(0.0, SIDE / 2 - reach(shape) * scale)  # keeps the whole shape inside
        centre = (SIDE / 2 + rng.uniform(-room, room), SIDE / 2 + rng.uniform(-room, room))
        draw_image(scene, SIDE, SIDE, centre, scale).save(folder / f"{number:04d}.png")


if __name__ == "__main__":
    sys.exit(main())
