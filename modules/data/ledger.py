"""The ledgers of the cache: one line of JSON per shard in each rank's folder, all of them together the
cache's memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

LEDGER_NAME = "index.jsonl"
SHARD_PATTERN = r"\d{6}\.safetensors"

FileRecord: TypeAlias = tuple[str, int, int, str]  # absolute path, size, mtime_ns, sha256 of the content in hex
Bad: TypeAlias = tuple[str, list[int], str, bool]  # absolute path, stamps of picture and mask, reason, for good


@dataclass
class LedgerLine:
    """What became known with one flush."""

    shard: str = ""  # file name; "" where no view was encoded
    shard_bytes: int = 0
    keys: list[str] = field(default_factory=list)  # of the entries of the shard, in order
    checksums: list[int] = field(default_factory=list)
    files: list[FileRecord] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)

    def says_something(self) -> bool:
        return bool(self.shard or self.files or self.bad)

    def dump(self) -> str:
        return json.dumps(vars(self), separators=(",", ":"))


def read_lines(folder: Path) -> Iterator[LedgerLine]:
    """The lines of one rank's ledger; a torn one, the trace of a killed run, is passed over."""
    try:
        content = (folder / LEDGER_NAME).read_bytes()
    except OSError:
        return
    for line in content.split(b"\n"):
        try:
            yield LedgerLine(**json.loads(line))
        except (ValueError, TypeError):
            continue


class Ledger:
    """The ledgers of all ranks, whatever the world size was, without shards that are gone or of the wrong
    size."""

    def __init__(self, cache_dir: Path) -> None:
        self.shards: list[Path] = []
        self.entries: dict[bytes, tuple[int, int, int]] = {}  # key -> (number of the shard, place in it, checksum)
        # Dates are part of the keys: another rank's older record of a file must not hide the newer one.
        self.contents: dict[tuple[str, int, int], bytes] = {}  # (path, size, mtime_ns) -> sha256
        self.bad: dict[tuple[str, tuple[int, ...]], tuple[str, bool]] = {}  # (path, stamps) -> (reason, for good)
        for folder in sorted(cache_dir.glob("rank-*")):
            sizes = _sizes(folder)
            for line in read_lines(folder):
                self._take(folder, line, sizes)

    def _take(self, folder: Path, line: LedgerLine, sizes: dict[str, int]) -> None:
        for path, size, mtime_ns, content in line.files:
            self.contents[path, size, mtime_ns] = bytes.fromhex(content)
        for path, stamps, reason, for_good in line.bad:
            self.bad[path, tuple(stamps)] = (reason, for_good)
        if line.shard and sizes.get(line.shard) == line.shard_bytes:
            number = len(self.shards)
            self.shards.append(folder / line.shard)
            for place, (key, checksum) in enumerate(zip(line.keys, line.checksums, strict=True)):
                self.entries[bytes.fromhex(key)] = (number, place, checksum)


def _sizes(folder: Path) -> dict[str, int]:
    try:
        return {path.name: path.stat().st_size for path in folder.iterdir() if path.suffix == ".safetensors"}
    except OSError:
        return {}
