"""Archives beside the folders that they were unpacked to, as Kaggle's `archive.zip` beside `train`."""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.files import FileFault, open_regular
from modules.files.shard_paths import is_archive
from modules.files.shards import shard_table

_COMPARED: Final = 3  # files of an archive whose beginning is compared with that of the same ones in folders
_COMPARED_BYTES: Final = 64 << 10


def unpacked_archives(
    root: str, images: Iterable[tuple[bytes, int]], shards: Sequence[tuple[str, str]], is_mask: Callable[[str], bool]
) -> set[str]:
    """The relative paths of the archives among `shards` (path, relative path), most of whose images lie in folders
    below theirs, too. `images` are (path below `root`, size in bytes)."""
    archives = [shard for shard in shards if is_archive(shard[0])]
    return set(_unpacked(root, images, archives, is_mask)) if archives else set()


def _unpacked(
    root: str, images: Iterable[tuple[bytes, int]], archives: Sequence[tuple[str, str]], is_mask: Callable[[str], bool]
) -> Iterator[str]:
    sizes = dict(images)
    ordered = sorted(sizes)
    for folder, group in itertools.groupby(archives, lambda archive: archive[1].rpartition("/")[0]):
        below = os.fsencode(f"{folder}/" if folder else "")
        first, last = (bisect_left(ordered, end) for end in (below, below + b"\xff" * 2))
        loose = {
            (name, sizes[path]): os.path.join(root, os.fsdecode(path))
            for path in ordered[first:last]
            for name in _names_below(path[len(below) :])
        }
        yield from (relative for path, relative in group if loose and _lies_there(path, loose, is_mask))


def _names_below(path: bytes) -> list[bytes]:
    """The path, and the one without its first folder."""
    return [path, *path.split(b"/", 1)[1:]]


def _lies_there(archive: str, loose: Mapping[tuple[bytes, int], str], is_mask: Callable[[str], bool]) -> bool:
    """Whether most images of an archive are among the `loose` files, which are by name and size."""
    try:
        table = shard_table(archive)
    except (FileFault, OSError):
        return False  # that is said where it is read
    images, found = 0, list[tuple[str, str]]()
    for packed, size in zip(table, table.sizes, strict=True):
        name = os.fsdecode(packed)
        suffix = os.path.splitext(name)[1].lower()
        if suffix not in IMAGE_SUFFIXES or is_mask(name) or name.startswith(".") or "/." in name:
            continue
        images += 1
        there = next((loose[part, size] for part in _names_below(packed) if (part, size) in loose), "")
        found += [(os.path.join(archive, name), there)] if there else []
    return 2 * len(found) > images and all(_begin_alike(*pair) for pair in found[:_COMPARED])


def _begin_alike(first: str, second: str) -> bool:
    try:
        with open_regular(first) as one, open_regular(second) as other:
            return one.read(_COMPARED_BYTES) == other.read(_COMPARED_BYTES)
    except (OSError, FileFault):
        return False
