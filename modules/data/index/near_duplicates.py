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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.config import Concept, DataError
from modules.data.index.images import IMAGE_ERRORS, suppress_pillow_warnings
from modules.data.index.scan import scan_concept
from modules.files.images import memory_to_decode, open_image

BITS: Final = 64
_SIDE: Final = 8
_THREADS: Final = 4
_ROWS: Final = 256  # compared at once with all others
_REPORT_S: Final = 0.2


@dataclass(frozen=True)
class HashedImage:
    """An image file, its size in pixels (width, height) and in bytes, and its hash."""

    file: str
    size: tuple[int, int]
    bytes: int
    hash: int


def difference_hash(image: Image.Image) -> int:
    """64 bits: whether each of 8 x 8 cells is brighter than the one at its left (Krawetz 2013, "Kind of Like That")."""
    grey = np.asarray(image.convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BOX), dtype=np.int16)
    bits = (grey[:, 1:] > grey[:, :-1]).flatten()
    return int.from_bytes(np.packbits(bits).tobytes())


def near_duplicates(
    folder: Path, distance: int, progress: Callable[[int, int], object] = lambda done, total: None
) -> tuple[list[list[HashedImage]], int]:
    """Groups of at least two images whose hashes differ in at most `distance` bits, directly or through others, the
    largest image of each group first; and how many files could not be read. Raises DataError."""
    scan = scan_concept(Concept(path=str(folder)), with_masks=False)
    files = [f"{scan.root}/{path.decode(errors='surrogateescape')}" for path in scan.paths]
    images = list[HashedImage]()
    with suppress_pillow_warnings(), ThreadPoolExecutor(_THREADS) as pool:
        for done, image in enumerate(pool.map(_hashed, files), start=1):
            progress(done, len(files))
            if image is not None:
                images.append(image)
    hashes = np.array([image.hash for image in images], dtype=np.uint64)
    groups = [[images[number] for number in group] for group in _grouped(hashes, distance)]
    for group in groups:
        group.sort(key=lambda image: (-image.size[0] * image.size[1], -image.bytes, image.file))
    return groups, len(files) - len(images)


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
    shown = [[asdict(image) for image in group] for group in groups]
    print(json.dumps({"groups": shown, "unreadable": unreadable}))
    return 0


def _hashed(file: str) -> HashedImage | None:
    """None for a file that cannot be read: the Data section lists those."""
    try:
        with open_image(file) as image, memory_to_decode(image):
            size = image.size
            image.draft("L", (16 * _SIDE, 16 * _SIDE))  # a JPEG is decoded at an eighth of its size
            return HashedImage(file, size, Path(file).stat().st_size, difference_hash(image))
    except IMAGE_ERRORS:
        return None


def _grouped(hashes: NDArray[np.uint64], distance: int) -> Iterator[list[int]]:
    """Positions of the members of each connected group, in order."""
    parent = np.arange(len(hashes))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = int(parent[number])
        return number

    for first in range(0, len(hashes), _ROWS):
        differing = np.bitwise_count(hashes[first : first + _ROWS, None] ^ hashes[None, :])
        for row, column in zip(*np.nonzero(differing <= distance), strict=True):
            if first + row < column:
                parent[root(int(column))] = root(first + int(row))
    members: dict[int, list[int]] = {}
    for number in range(len(hashes)):
        members.setdefault(root(number), []).append(number)
    yield from (group for group in members.values() if len(group) > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
