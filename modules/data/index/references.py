"""Reference images of a concept: which files of its reference folders belong to which of its images."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Final

from pydantic import TypeAdapter, ValidationError

from modules.config import Concept, DataError
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.files import FileFault, decode_json, whole_path

_NUMBERED: Final = re.compile(r"(.*)_([0-9]+)", re.DOTALL)
_ROWS: Final = TypeAdapter(list[tuple[str, int, int, int, int]])


@dataclass(frozen=True)
class ReferenceFile:
    """A reference image as it was found; its sides in pixels, upright, are 0 until its header is read."""

    path: str  # absolute
    size: int  # bytes
    mtime_ns: int
    width: int = 0
    height: int = 0


def reference_roots(concept: Concept) -> tuple[str, ...]:
    """The concept's reference folders as absolute paths."""
    return tuple(str(whole_path(os.path.expanduser(each))) for each in concept.reference_folders)


class ReferenceFolder:
    """The images in a folder of references, by their paths below it without suffix."""

    def __init__(self, root: str) -> None:
        """List the folder and those in it."""
        self.root = root
        self._files = dict(sorted(_images(root), reverse=True))  # of a.jpg and a.png, the first counts
        self._numbered: dict[str, dict[int, str]] = {}
        for name in sorted(self._files, key=len, reverse=True):  # a_1 counts before a_0001
            if parts := _NUMBERED.fullmatch(name):
                self._numbered.setdefault(parts[1], {})[int(parts[2])] = name

    def of(self, image: str) -> list[ReferenceFile]:
        """Those of an image by its relative path: NAME, or else NAME_0 or NAME_1, the next number and so on, which may
        have leading zeros; none if there are none."""
        name = os.path.splitext(image)[0]
        if name in self._files:
            return [_found(self._files[name])]
        numbered = self._numbered.get(name, {})
        numbers = takewhile(numbered.__contains__, count(0 if 0 in numbered else 1))
        return [_found(self._files[numbered[each]]) for each in numbers]


def references_of(image: str, folders: Sequence[ReferenceFolder], most: int) -> list[ReferenceFile] | str:
    """The references of an image in all folders, at most `most`, or why it cannot be used.

    Raises OSError if one cannot be looked at."""
    found = [folder.of(image) for folder in folders]
    lacking = [folder.root for folder, files in zip(folders, found, strict=True) if not files]
    if lacking:
        name = os.path.splitext(image)[0]
        return f"skipped: no reference image {name}.* or {name}_1.* in {' and '.join(lacking)}"
    files = [file for each in found for file in each]
    if len(files) > most:
        names = ", ".join(os.path.basename(each.path) for each in files[:4])
        return f"skipped: {len(files)} reference images ({names}), and the model takes {most}"
    return files


def pack_references(files: Sequence[ReferenceFile]) -> bytes:
    """As the index stores those of one image; empty for none."""
    if not files:
        return b""
    return json.dumps([[each.path, each.size, each.mtime_ns, each.width, each.height] for each in files]).encode()


def unpack_references(text: bytes) -> tuple[ReferenceFile, ...]:
    """The files of `pack_references`. Raises DataError if the text is not from there."""
    if not text:
        return ()
    try:
        rows = _ROWS.validate_python(decode_json(text))
    except (FileFault, ValidationError) as error:
        raise DataError(
            f"The index is damaged: its reference images cannot be read ({error}).",
            "Delete the files index-* in cache_dir; the next start builds it again.",
        ) from error
    return tuple(ReferenceFile(*row) for row in rows)


def _images(root: str) -> Iterator[tuple[str, str]]:
    """(path below `root` without suffix, absolute path) of all images; hidden ones are ignored, links followed once."""
    visited = set[tuple[int, int]]()
    pending = [(root, "")]
    while pending:
        folder, prefix = pending.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            entries = [each for each in os.scandir(folder) if not each.name.startswith(".")]
        except OSError:  # what is in it is missing, and named so
            continue
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            if suffix.lower() in IMAGE_SUFFIXES:
                yield prefix + name, entry.path
            elif os.path.isdir(entry.path):
                pending.append((entry.path, f"{prefix}{entry.name}/"))


def _found(path: str) -> ReferenceFile:
    status = os.stat(path)
    return ReferenceFile(path, status.st_size, status.st_mtime_ns)
