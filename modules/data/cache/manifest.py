"""The manifests of the cache: a file per rank folder, with a line of JSON for each shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from modules.files import FileFault, file_size, open_regular, printable, remove_tree, validate_record

MANIFEST_NAME = "index.jsonl"
VERSION = 2
SHARD_PATTERN = r"\d{6}\.safetensors"
_LINE_BYTES = 64 << 20  # a flush lists 64 images, or what could not be used within 30 s

Hex: TypeAlias = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,64}$")]
FileRecord: TypeAlias = tuple[str, int, int, Hex]  # absolute path, size, mtime_ns, sha256 of the content
BadFile: TypeAlias = tuple[str, list[int], str, bool]  # absolute path, stamps of image and mask, reason, permanent


@dataclass
class ManifestLine:
    """What one flush adds; JSON in the file, so the names are part of the format."""

    shard: Annotated[str, Field(pattern=rf"^({SHARD_PATTERN})?$")] = ""  # file name; "" if no view was encoded
    shard_bytes: int = 0
    keys: list[Hex] = field(default_factory=list)  # of the entries of the shard, in order
    checksums: list[Annotated[int, Field(ge=0, lt=1 << 32)]] = field(default_factory=list)
    files: list[FileRecord] = field(default_factory=list)
    bad: list[BadFile] = field(default_factory=list)
    version: int = 1  # up to 0.3.0 and in 1, captions and images were in one entry

    def has_content(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.shard or self.files or self.bad)

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(vars(self), separators=(",", ":"))


def read_lines(folder: Path) -> Iterator[ManifestLine]:
    """The lines of one rank's manifest; a torn one, left by a killed run, and what is no such line are skipped."""
    try:
        for text in _texts(folder):
            if (line := _parse(text)) is not None:
                yield line
    except (OSError, FileFault):
        return


def remove_unreadable(folder: Path) -> None:
    """Remove what has the name of the manifest and cannot be read to its end: lines added to it would not be found."""
    try:
        for _ in _texts(folder):
            pass
    except FileFault:
        remove_tree(folder / MANIFEST_NAME)
    except OSError:
        return


def _texts(folder: Path) -> Iterator[bytes]:
    with open_regular(folder / MANIFEST_NAME) as file:
        while text := file.readline(_LINE_BYTES):
            if len(text) == _LINE_BYTES:
                raise FileFault("has a line that no flush has written")
            yield text


def _parse(text: bytes) -> ManifestLine | None:
    try:
        line = validate_record(ManifestLine, json.loads(text))  # not decode_json, which takes twice as long
    except (ValueError, RecursionError):
        return None
    return line if len(line.keys) == len(line.checksums) else None


class CacheManifest:
    """The manifests of all ranks, whatever the world size was, without shards that are missing or have the wrong
    size."""

    def __init__(self, cache_dir: Path) -> None:
        self.shards: list[Path] = []
        self.entries: dict[bytes, int] = {}  # key -> row of `places`
        self._places: list[NDArray[np.int64]] = []  # of each line
        self._listed = 0
        # mtimes are part of the keys, so another rank's older record of a file does not hide the newer one.
        self.contents: dict[tuple[str, int, int], bytes] = {}  # (path, size, mtime_ns) -> sha256
        self.bad: dict[tuple[str, tuple[int, ...]], tuple[str, bool]] = {}  # (path, stamps) -> (reason, permanent)
        self.has_former = False  # shards of version 1
        for folder in sorted(cache_dir.glob("rank-*")):
            sizes = _sizes(folder)
            for line in read_lines(folder):
                self._add(folder, line, sizes)

    def _add(self, folder: Path, line: ManifestLine, sizes: dict[str, int]) -> None:
        self.contents.update(((path, size, mtime), bytes.fromhex(content)) for path, size, mtime, content in line.files)
        for path, stamps, reason, permanent in line.bad:
            self.bad[path, tuple(stamps)] = (printable(reason, 500), permanent)
        if line.shard and sizes.get(line.shard) == line.shard_bytes:
            self.has_former |= line.version < VERSION
            number = len(self.shards)
            self.shards.append(folder / line.shard)
            first = self._listed
            self.entries.update(zip(map(bytes.fromhex, line.keys), range(first, first + len(line.keys)), strict=True))
            positions = np.arange(len(line.keys))
            self._places.append(np.stack([np.full_like(positions, number), positions, line.checksums], axis=1))
            self._listed += len(line.keys)

    @property
    def places(self) -> NDArray[np.int64]:
        """[listed + 1, 3]: shard, position in it and checksum; -1 in the last row, that of what is not cached."""
        return np.concatenate([*self._places, np.full((1, 3), -1, dtype=np.int64)])


def cache_files(cache_dir: Path) -> list[tuple[str, int, int, list[tuple[str, int]]]]:
    """Of each rank's folder its name, size and mtime_ns of its manifest, and (name, size) of its shards."""
    found = []
    for folder in sorted(cache_dir.glob("rank-*")):
        size = mtime_ns = -1
        with suppress(OSError):
            stamp = (folder / MANIFEST_NAME).stat()
            size, mtime_ns = stamp.st_size, stamp.st_mtime_ns
        found.append((folder.name, size, mtime_ns, sorted(_sizes(folder).items())))
    return found


def _sizes(folder: Path) -> dict[str, int]:
    """The sizes of the shards in a folder."""
    sizes = {}
    with suppress(OSError):
        for path in folder.glob("*.safetensors"):
            with suppress(OSError, FileFault):
                sizes[path.name] = file_size(path)
    return sizes
