"""Files in a shard, which are read where they lie: `photos/00000.tar/000012.jpg` is a path like any other.

A shard is a tar or zip archive, or a table of Arrow or Parquet with images. What it holds is listed once and kept in
the user's cache folder, as arrays that all processes map into memory: sorted names, places and sizes.
"""

from __future__ import annotations

import bisect
import errno
import hashlib
import io
import itertools
import json
import mmap
import os
import sys
import threading
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from modules.files.opening import open_file
from modules.files.partial import replacing
from modules.files.shard_contents import MAX_MEMBERS, Contents, read_tar
from modules.files.shard_paths import PARQUET, split_member
from modules.files.table_shards import read_row, read_table
from modules.files.user_folder import user_cache_folder
from modules.files.writing import open_for_writing
from modules.files.zip_members import open_zipped, read_zip

_MAGIC: Final = b"TANDSH02"
_WORD: Final = 8  # bytes of a number
_lock = threading.Lock()
_tables: dict[str, ShardTable] = {}


class ShardTable(Sequence[bytes]):
    """The names of the files in a shard in order, with `places` and `sizes`; of equal names the last file counts."""

    def __init__(self, stamp: tuple[int, int], faults: list[tuple[str, str]], columns: memoryview) -> None:
        """`columns`: uint64 starts [n + 1], places [n] and sizes [n], then the names. Raises ValueError."""
        self.stamp, self.faults = stamp, faults
        count = int.from_bytes(columns[:_WORD], sys.byteorder)
        if not 0 <= count <= MAX_MEMBERS or len(columns) < (3 * count + 2) * _WORD:
            raise ValueError("the table is cut off")
        numbers = columns[_WORD : (3 * count + 2) * _WORD].cast("Q")
        self._starts, self._count = numbers[: count + 1], count
        self.places, self.sizes = numbers[count + 1 : 2 * count + 1], numbers[2 * count + 1 :]
        self._names = columns[(3 * count + 2) * _WORD :]

    @classmethod
    def pack(cls, contents: Contents) -> bytes:
        """The `columns` of these files."""
        names = contents.names
        order = sorted(range(len(names)), key=names.__getitem__)
        following = [*(names[row] for row in order[1:]), None]
        kept = [row for row, next_name in zip(order, following, strict=False) if names[row] != next_name]
        if repeated := len(order) - len(kept):
            contents.refuse(b"", f"{repeated:,} of its files have the name of a later one, which counts")
        starts = array("Q", [0, *itertools.accumulate(len(names[row]) for row in kept)])
        places, sizes = (array("Q", [numbers[row] for row in kept]) for numbers in (contents.places, contents.sizes))
        words = [array("Q", [len(kept)]), starts, places, sizes]
        return b"".join([*(each.tobytes() for each in words), *(names[row] for row in kept)])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> bytes:  # type: ignore[override]
        if not 0 <= row < self._count:
            raise IndexError(row)
        return bytes(self._names[self._starts[row] : self._starts[row + 1]])

    def __iter__(self) -> Iterator[bytes]:
        return (self[row] for row in range(self._count))

    def find(self, name: bytes) -> int:
        """The row of a name, -1 if there is none."""
        row = bisect.bisect_left(self, name)
        return row if row < self._count and self[row] == name else -1


def shard_table(path: str) -> ShardTable:
    """What the shard holds, listed anew if it has changed. Raises OSError, or FileFault if it is none."""
    with open_file(path) as file:
        status = os.fstat(file.fileno())
    stamp = status.st_size, status.st_mtime_ns
    table = _tables.get(path)
    if table is None or table.stamp != stamp:
        with _lock:  # threads that need the same one
            table = _tables.get(path)
            if table is None or table.stamp != stamp:
                table = _tables[path] = _stored(path, stamp) or _listed(path, stamp)
    return table


def _after_fork() -> None:
    """A thread that the new process does not have may have held the lock."""
    global _lock
    _lock = threading.Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)


def member_stamp(path: str) -> tuple[int, int]:
    """Bytes of a file in a shard, and the time of the shard's last change (ns); raises OSError or FileFault."""
    table, row, _ = _find(path)
    return table.sizes[row], table.stamp[1]


def open_member(path: str) -> io.BufferedReader:
    """Open a file in a shard, to read and to seek in. Raises OSError or FileFault."""
    table, row, shard = _find(path)
    place, size = table.places[row], table.sizes[row]
    if shard.lower().endswith(PARQUET):
        return io.BufferedReader(io.BytesIO(read_row(shard, place)))
    if shard.lower().endswith(".zip"):
        return open_zipped(shard, place)
    return io.BufferedReader(_Part(open_file(shard), place, size))


def _find(path: str) -> tuple[ShardTable, int, str]:
    shard, name = split_member(path) or (path, "")
    table = shard_table(shard)
    row = table.find(os.fsencode(name))
    if row < 0:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return table, row, shard


class _Part(io.RawIOBase):
    """Some bytes of a file, as a file."""

    def __init__(self, file: io.BufferedReader, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """The new position; raises ValueError for one before the start."""
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError("a position before the start of the file")
        self._at = at
        return at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """How many bytes were read."""
        wanted = max(0, min(len(buffer), self._size - self._at))
        raw = cast("io.FileIO", self._file.raw)  # without a buffer of its own
        raw.seek(self._start + self._at)
        count: int = raw.readinto(buffer[:wanted]) or 0
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _listed(path: str, stamp: tuple[int, int]) -> ShardTable:
    """The table of a shard that is read now, and stored."""
    suffix = os.path.splitext(path)[1].lower()
    contents = {".tar": read_tar, ".zip": read_zip}.get(suffix, read_table)(path)
    columns = ShardTable.pack(contents)
    if contents.unlisted_faults:
        contents.faults.append(("", f"{contents.unlisted_faults:,} more of its files are not used"))
    header = json.dumps([*stamp, contents.faults]).encode()
    header += b" " * (-len(header) % _WORD)
    stored = _stored_at(path)
    with suppress(OSError):  # without it, each process lists the shard itself
        stored.parent.mkdir(parents=True, exist_ok=True)
        with replacing(stored) as partial, os.fdopen(open_for_writing(partial), "wb") as file:
            checksum = zlib.crc32(columns, zlib.crc32(header))
            file.writelines([_MAGIC, *(each.to_bytes(_WORD, "little") for each in (len(header), checksum))])
            file.writelines([header, columns])
    return _stored(path, stamp) or ShardTable(stamp, contents.faults, memoryview(columns))


def _stored(path: str, stamp: tuple[int, int]) -> ShardTable | None:
    """The table that was stored of the shard as it is now; None if there is none, or it is damaged."""
    with suppress(OSError, ValueError), open_file(_stored_at(path)) as file:
        stored = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        length, checksum = (int.from_bytes(stored[at : at + _WORD], "little") for at in (_WORD, 2 * _WORD))
        # Not written through to the disk, so that a power cut may leave anything: it is the checksum that tells.
        if bytes(stored[:_WORD]) != _MAGIC or zlib.crc32(stored[3 * _WORD :]) != checksum:
            return None
        size, mtime_ns, faults = json.loads(bytes(stored[3 * _WORD : 3 * _WORD + length]))
        if (size, mtime_ns) == stamp:
            columns = stored[3 * _WORD + length :]
            return ShardTable(stamp, [(str(name), str(what)) for name, what in faults], columns)
    return None


def _stored_at(path: str) -> Path:
    """One file for each shard, so that a shard that changes leaves nothing behind."""
    digest = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()
    return user_cache_folder() / "shards" / digest[:32]
