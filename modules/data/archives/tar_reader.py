"""Reads a tar archive, plain or compressed with gzip, from its beginning to its end, and takes a few files out of it.

Python's tarfile follows headers that lead back, so that 1 KB is read for ever (CVE-2025-8194), and reads as many bytes
of extended headers as they say. Layout: POSIX.1-1988 ustar, with the long names of GNU tar and of pax.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from modules.files import FileFault, open_for_writing, open_regular
from modules.files.tar_headers import (
    BLOCK,
    EXTENDED,
    MAX_EXTENDED,
    REGULAR,
    SPARSE,
    WITHOUT_DATA,
    Extension,
    parse_tar_header,
)

MAX_FILE: Final = 256 << 20  # bytes; the largest of the real ones has 155 MB
MAX_BYTES: Final = 1 << 30  # of the whole archive, unpacked
MAX_MEMBERS: Final = 10_000
MAX_GZIP_MEMBERS: Final = 1000  # gzip files one after the other, which count as one
_CHUNK: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"


def extract(archive: Path, wanted: frozenset[str], folder: Path) -> None:
    """Write the files whose last names are `wanted` into `folder`, under these names; of equal ones the last stays.

    Raises FileFault if the archive is damaged, larger than the limits, or has no sensible headers, and OSError.
    """
    try:
        with open_regular(archive) as raw:
            is_compressed = raw.peek(2)[:2] == _GZIP
            with io.BufferedReader(_Unpacked(raw)) if is_compressed else raw as opened:
                stream = _Limited(opened)
                _extract(stream, wanted, folder)
                if is_compressed:
                    stream.read_rest()
    except (EOFError, zlib.error) as error:
        raise FileFault(f"is damaged ({str(error)[:100]})") from error


class _Unpacked(io.RawIOBase):
    """What a gzip file holds, read in order; Python's gzip module reads any number of members that hold nothing."""

    def __init__(self, raw: io.BufferedIOBase) -> None:
        self._raw, self._packed, self._members = raw, b"", 1
        self._member = zlib.decompressobj(31)  # with gzip's header and checksum

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Raises EOFError, zlib.error, or FileFault for too many members."""
        data = b""
        while not data:
            packed = self._packed or self._raw.read(_CHUNK)
            if self._member.eof:
                if packed[:1] in (b"", b"\0"):  # the end, or what fills up the last block of a tape
                    return 0
                self._member, self._members = zlib.decompressobj(31), self._members + 1
                if self._members > MAX_GZIP_MEMBERS:
                    raise FileFault(f"is made of more than {MAX_GZIP_MEMBERS} gzip files")
            data = self._member.decompress(packed, len(buffer))
            self._packed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if not (packed or data or self._member.eof):
                raise EOFError("it ends too early")
        buffer[: len(data)] = data
        return len(data)


class _Limited:
    """A stream of at most MAX_BYTES, read in order."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream, self._left = stream, MAX_BYTES

    def read(self, count: int, *, is_end: bool = False) -> bytes:
        """`count` bytes; at the end none if `is_end` allows it. Raises EOFError, and FileFault beyond the limit."""
        self._left -= count
        if self._left < 0:
            raise FileFault(f"holds more than {MAX_BYTES >> 20} MiB")
        data = self._stream.read(count)
        if len(data) < count and (data or not is_end):
            raise EOFError("it ends too early")
        return data

    def chunks(self, count: int) -> Iterator[bytes]:
        """The next `count` bytes in pieces, without what fills up the last block."""
        for start in range(0, count, _CHUNK):
            yield self.read(min(_CHUNK, count - start))
        self.read(-count % BLOCK)

    def read_rest(self) -> None:
        """To the end, where gzip has a checksum."""
        while data := self._stream.read(_CHUNK):
            self._left -= len(data)
            if self._left < 0:
                raise FileFault(f"holds more than {MAX_BYTES >> 20} MiB")


def _extract(stream: _Limited, wanted: frozenset[str], folder: Path) -> None:
    extension = Extension()
    for _ in range(MAX_MEMBERS):
        header = parse_tar_header(stream.read(BLOCK, is_end=True))
        if header is None:
            return
        if header.kind in EXTENDED:
            if header.size > MAX_EXTENDED:
                raise FileFault(f"has a header of {header.size} bytes")
            extension = extension.extended(header.kind, b"".join(stream.chunks(header.size)))
            continue
        name = (extension.name or header.name).rsplit(b"/", 1)[-1].decode("latin-1")
        extension = Extension()
        if header.kind in WITHOUT_DATA:
            continue
        if header.kind == SPARSE:
            raise FileFault("has a file with holes, which Tandem does not read")
        if header.size > MAX_FILE:
            raise FileFault(f"has a file of {header.size >> 20} MiB; the largest may have {MAX_FILE >> 20}")
        if header.kind in REGULAR and name in wanted:
            with os.fdopen(open_for_writing(folder / name), "wb") as file:
                file.writelines(stream.chunks(header.size))
        else:
            for _ in stream.chunks(header.size):
                pass
    raise FileFault(f"has more than {MAX_MEMBERS} files")
