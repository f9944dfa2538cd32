"""The manifests of the cache: a file per rank folder, with a line of JSON for each shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

MANIFEST_NAME = "index.jsonl"
SHARD_PATTERN = r"\d{6}\.safetensors"

FileRecord: TypeAlias = tuple[str, int, int, str]  # absolute path, size, mtime_ns, sha256 of the content in hex
BadFile: TypeAlias = tuple[str, list[int], str, bool]  # absolute path, stamps of image and mask, reason, permanent


@dataclass
class ManifestLine:
    """What one flush adds; JSON in the file, so the names are part of the format."""

    shard: str = ""  # file name; "" if no view was encoded
    shard_bytes: int = 0
    keys: list[str] = field(default_factory=list)  # of the entries of the shard, in order
    checksums: list[int] = field(default_factory=list)
    files: list[FileRecord] = field(default_factory=list)
    bad: list[BadFile] = field(default_factory=list)

    def has_content(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.shard or self.files or self.bad)

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(vars(self), separators=(",", ":"))


def read_lines(folder: Path) -> Iterator[ManifestLine]:
    """The lines of one rank's manifest; a torn one, left by a killed run, is skipped."""
    try:
        content = (folder / MANIFEST_NAME).read_bytes()
    except OSError:
        return
    for line in content.split(b"\n"):
        try:
            yield ManifestLine(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            continue


class CacheManifest:
    """The manifests of all ranks, whatever the world size was, without shards that are missing or have the wrong
    size."""

    def __init__(self, cache_dir: Path) -> None:
        self.shards: list[Path] = []
        self.entries: dict[bytes, tuple[int, int, int]] = {}  # key -> (shard, position in it, checksum)
        # mtimes are part of the keys, so another rank's older record of a file does not hide the newer one.
        self.contents: dict[tuple[str, int, int], bytes] = {}  # (path, size, mtime_ns) -> sha256
        self.bad: dict[tuple[str, tuple[int, ...]], tuple[str, bool]] = {}  # (path, stamps) -> (reason, permanent)
        for folder in sorted(cache_dir.glob("rank-*")):
            sizes = _sizes(folder)
            for line in read_lines(folder):
                self._add(folder, line, sizes)

    def _add(self, folder: Path, line: ManifestLine, sizes: dict[str, int]) -> None:
        for path, size, mtime_ns, content in line.files:
            self.contents[path, size, mtime_ns] = bytes.fromhex(content)
        for path, stamps, reason, permanent in line.bad:
            self.bad[path, tuple(stamps)] = (reason, permanent)
        if line.shard and sizes.get(line.shard) == line.shard_bytes:
            number = len(self.shards)
            self.shards.append(folder / line.shard)
            for position, (key, checksum) in enumerate(zip(line.keys, line.checksums, strict=True)):
                self.entries[bytes.fromhex(key)] = (number, position, checksum)


def _sizes(folder: Path) -> dict[str, int]:
    try:
        return {path.name: path.stat().st_size for path in folder.iterdir() if path.suffix == ".safetensors"}
    except OSError:
        return {}
