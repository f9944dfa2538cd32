"""`python -m modules.data.index.near_duplicates FOLDER DISTANCE`: images of a folder that look nearly the same.

The window runs it in a child process. Lines of JSON: {"done": N, "total": M} while images are read, then
{"groups": [[{"file": ..., "size": [width, height], "bytes": ...}, ...], ...], "unreadable": N}, or {"error": ...}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.config import Concept, DataError
from modules.data.index.images import IMAGE_ERRORS, read_image_size, suppress_pillow_warnings
from modules.data.index.scan import scan_concept
from modules.files import file_size
from modules.files.images import open_image, upright_rgb
from modules.files.videos import is_video, read_poster

BITS: Final = 64
_SIDE: Final = 8
_COLOUR_SIDE: Final = 4
_MOST_COLOUR_DIFFERENCE: Final = 32  # of 255, in any cell; an image that is a fifth darker stays below
_THREADS: Final = 4
_ROWS: Final = 256  # compared at once with all others
_REPORT_S: Final = 0.2


@dataclass(frozen=True)
class HashedImage:
    """An image file, its size in pixels (width, height) and in bytes, and what it looks like."""

    file: str
    size: tuple[int, int]
    bytes: int
    hash: int
    colours: NDArray[np.uint8]  # [32], of `cell_colours`


def difference_hash(image: Image.Image) -> int:
    """64 bits: whether each of 8 x 8 cells is brighter than the one at its left (Krawetz 2013, "Kind of Like That")."""
    grey = np.asarray(image.convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BOX), dtype=np.int16)
    bits = (grey[:, 1:] > grey[:, :-1]).flatten()
    return int.from_bytes(np.packbits(bits).tobytes())


def cell_colours(image: Image.Image) -> NDArray[np.uint8]:
    """The mean Cb and Cr of 4 x 4 cells, [32]: what the hash, of brightness only, cannot tell apart."""
    small = image.resize((_COLOUR_SIDE, _COLOUR_SIDE), Image.Resampling.BOX).convert("YCbCr")
    return np.asarray(small)[..., 1:].flatten()


def near_duplicates(
    folder: Path, distance: int, progress: Callable[[int, int], object] = lambda done, total: None
) -> tuple[list[list[HashedImage]], int]:
    """Groups of images that look alike, directly or through others, and how many files could not be read.

    Hashes differ in at most `distance` bits, and colours are alike. The largest image of a group is its first. Raises
    DataError.
    """
    scan = scan_concept(Concept(path=str(folder)), with_masks=False, with_videos=True)
    files = [f"{scan.root}/{path.decode(errors='surrogateescape')}" for path in scan.paths]
    images = list[HashedImage]()
    with suppress_pillow_warnings(), ThreadPoolExecutor(_THREADS) as pool:
        for done, image in enumerate(pool.map(hashed_image, files), start=1):
            progress(done, len(files))
            if image is not None:
                images.append(image)
    groups = [[images[number] for number in group] for group in similar_groups(images, distance)]
    for group in groups:
        group.sort(key=lambda image: (-image.size[0] * image.size[1], -image.bytes, image.file))
    others = sum(problem.what.startswith("skipped") for problem in scan.problems)  # such as GIF
    return groups, len(files) - len(images) + others


def hashed_image(file: str) -> HashedImage | None:
    """None for a file that cannot be read: the Data section lists those. Of a video, its first frame counts."""
    try:
        size_of_file = file_size(file)
        if is_video(file):
            rgb = read_poster(file)
            return HashedImage(file, rgb.size, size_of_file, difference_hash(rgb), cell_colours(rgb))
        size = read_image_size(file)
        with open_image(file) as image:
            rgb = upright_rgb(image, (16 * _SIDE, 16 * _SIDE))  # a JPEG is decoded at an eighth of its size
        return HashedImage(file, size, size_of_file, difference_hash(rgb), cell_colours(rgb))
    except IMAGE_ERRORS:
        return None


def similar_groups(images: Sequence[HashedImage], distance: int) -> Iterator[list[int]]:
    """Positions of the members of each connected group of images that look alike, in order."""
    hashes = np.array([image.hash for image in images], dtype=np.uint64)
    colours = np.array([image.colours for image in images], dtype=np.int16)
    parent = np.arange(len(hashes))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = int(parent[number])
        return number

    for first in range(0, len(hashes), _ROWS):
        differing = np.bitwise_count(hashes[first : first + _ROWS, None] ^ hashes[None, :])
        for row, column in zip(*np.nonzero(differing <= distance), strict=True):
            if first + row < column and np.abs(colours[first + row] - colours[column]).max() <= _MOST_COLOUR_DIFFERENCE:
                parent[root(int(column))] = root(first + int(row))
    members: dict[int, list[int]] = {}
    for number in range(len(hashes)):
        members.setdefault(root(number), []).append(number)
    yield from (group for group in members.values() if len(group) > 1)


def main(arguments: Sequence[str]) -> int:
    """Print progress and groups; returns an exit code."""
    if len(arguments) != 2 or not arguments[1].isdecimal() or int(arguments[1]) > BITS:
        print("usage: python -m modules.data.index.near_duplicates FOLDER DISTANCE", file=sys.stderr)
        return 2
    reported = 0.0

    def report(done: int, total: int) -> None:
        nonlocal reported
        if time.monotonic() - reported > _REPORT_S:
            reported = time.monotonic()
            print(json.dumps({"done": done, "total": total}), flush=True)

    try:
        groups, unreadable = near_duplicates(Path(arguments[0]), int(arguments[1]), report)
    except DataError as error:
        print(json.dumps({"error": str(error)}))
        return 2
    shown = [[{"file": each.file, "size": each.size, "bytes": each.bytes} for each in group] for group in groups]
    print(json.dumps({"groups": shown, "unreadable": unreadable}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
