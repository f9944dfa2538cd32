"""The files in a zip archive, found by its central directory (PKWARE's APPNOTE 6.3.10), stored or deflated."""

from __future__ import annotations

import io
import itertools
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from modules.files.display import printable
from modules.files.opening import FileFault, open_file
from modules.files.shard_contents import MAX_MEMBER, Contents, name_fault, plain_name

MAX_INFLATED: Final = 512 << 20  # bytes of a deflated file
_AT_ONCE: Final = 8 << 20  # bytes of one that is inflated in memory as it is opened
_OTHER_SIZE: Final = "is damaged (it has another size than the zip archive says)"
_END: Final = struct.Struct("<4s4H2IH")
_END_64: Final = struct.Struct("<4sQ2H2I4Q")
_LOCATOR: Final = struct.Struct("<4sIQI")
_ENTRY: Final = struct.Struct("<4s6H3I5H2I")
_LOCAL: Final = struct.Struct("<4s5H3I2H")
_END_SIGNATURE: Final = b"PK\5\6"
_MAX_COMMENT: Final = 0xFFFF  # bytes, behind the end record
_IN_EXTRA: Final = 0xFFFF_FFFF  # the number is in the extra field of zip64
_STORED, _DEFLATED = 0, 8
_METHODS: Final = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "XZ", 99: "AES"}
_ENCRYPTED: Final = 1 | 1 << 6 | 1 << 13  # bits of the flags
_UTF_8: Final = 1 << 11
_ON_UNIX: Final = 3
_CHUNK: Final = 64 << 10  # bytes; zlib copies what is left of one at each step


@dataclass(frozen=True)
class _Entry:
    """One file in the central directory."""

    name: bytes
    flags: int
    method: int
    checksum: int
    packed: int  # bytes in the archive
    size: int
    offset: int  # of its local header
    mode: int  # st_mode, 0 if it is not known


def read_zip(path: str) -> Contents:
    """The files of a zip archive; the place of one is that of its entry in the central directory.

    Raises OSError, or FileFault if it is none.
    """
    contents, spans = Contents(), list[tuple[int, int, bytes]]()
    with open_file(path) as file:
        start, end = _directory(file)
        at = start
        try:
            for at, entry in _entries(file, start, end):
                name = plain_name(entry.name)
                what = "" if entry.name.endswith(b"/") else _fault(entry, name, start)
                if what:
                    contents.refuse(entry.name, what)
                elif not entry.name.endswith(b"/"):
                    contents.add(name, at, entry.size)
                    spans.append((entry.offset, entry.offset + entry.packed, name))
        except (FileFault, struct.error) as fault:
            if not contents.names:
                raise FileFault(str(fault)) from None
            last = printable(os.fsdecode(contents.names[-1]), 200)
            contents.refuse(b"", f"it {fault}; what comes after {last} in its list is not read")
    _refuse_overlap(spans)
    return contents


def open_zipped(path: str, place: int) -> io.BufferedReader:
    """A file in a zip archive, to read and to seek in; one that is read to its end in one go is checked by its
    checksum.

    `place` is from `read_zip`. Raises OSError or FileFault, as reading does.
    """
    file = open_file(path)
    try:
        _, entry = next(_entries(file, place, place + 1))
        file.seek(entry.offset)
        head = file.read(_LOCAL.size)
        if len(head) < _LOCAL.size or not head.startswith(b"PK\3\4"):
            raise FileFault("is damaged (its place in the zip archive holds something else)")
        *_, name_length, extra_length = _LOCAL.unpack(head)
        opened = _Zipped(file, entry.offset + _LOCAL.size + name_length + extra_length, entry)
        if entry.method == _STORED or entry.size > _AT_ONCE:
            return io.BufferedReader(opened)
        with opened:  # small: to seek in it would inflate it several times
            return io.BufferedReader(io.BytesIO(opened.readall()))
    except BaseException:
        file.close()
        raise


class _Zipped(io.RawIOBase):
    """The content of a file in a zip archive, inflated as far as it is read and not kept; to go back begins anew."""

    def __init__(self, file: io.BufferedReader, begin: int, entry: _Entry) -> None:
        self._file, self._begin, self._entry, self._at = file, begin, entry, 0
        self._restart()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """The new position; raises ValueError for one before the start."""
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._entry.size}[whence]
        if at < 0:
            raise ValueError("a position before the start of the file")
        self._at = at
        return at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """How many bytes were read; raises FileFault for what is damaged."""
        wanted = max(0, min(len(buffer), self._entry.size - self._at))
        if not wanted:
            self._check_end()
            return 0
        if self._at == 0 or (self._at < self._done and self._entry.method == _DEFLATED):
            self._restart()
        while self._entry.method == _DEFLATED and self._done < self._at:
            self._next(min(_CHUNK, self._at - self._done))
        data = self._next(wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        self._check_end()
        return len(data)

    def readall(self) -> bytes:
        """What is left, in larger pieces than by default."""
        found = bytearray()
        while data := self.read(_CHUNK):
            found += data
        return bytes(found)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _restart(self) -> None:
        self._inflate, self._left = zlib.decompressobj(-zlib.MAX_WBITS), self._entry.packed
        self._done = self._checksum = 0  # of the content so far
        self._file.seek(self._begin)

    def _next(self, most: int) -> bytes:
        """Some of the bytes that follow, at least one."""
        if self._entry.method == _STORED:
            self._file.seek(self._begin + self._at)
            data = self._file.read(most)
            if not data:
                raise FileFault("is cut off")
            if self._at != self._done:
                return data  # it is not read in one go
        else:
            data = self._inflated(most)
        self._done += len(data)
        self._checksum = zlib.crc32(data, self._checksum)
        return data

    def _inflated(self, most: int) -> bytes:
        data = b""
        while not data:
            packed = self._inflate.unconsumed_tail
            if not packed:
                packed = self._file.read(min(self._left, _CHUNK))
                self._left -= len(packed)
            data = self._decompressed(packed, most)
            if not data and (self._inflate.eof or not packed):
                raise FileFault(_OTHER_SIZE)
        return data

    def _decompressed(self, packed: bytes, most: int) -> bytes:
        try:
            return self._inflate.decompress(packed, most)
        except zlib.error:
            raise FileFault("is damaged (it cannot be inflated)") from None

    def _check_end(self) -> None:
        if self._done < self._entry.size:
            return
        if self._entry.method == _DEFLATED and not self._inflate.eof:
            tail = self._inflate.unconsumed_tail or self._file.read(min(self._left, _CHUNK))
            if self._decompressed(tail, 1) or not self._inflate.eof:
                raise FileFault(_OTHER_SIZE)
        if self._checksum != self._entry.checksum:
            raise FileFault("is damaged (its checksum in the zip archive does not match)")


def _fault(entry: _Entry, name: bytes, directory: int) -> str:
    """Why a file is not used; empty if it is."""
    if not name:
        return name_fault(entry.name)
    if entry.mode and stat.S_IFMT(entry.mode) not in (0, stat.S_IFREG):
        return "is a link or a device in the archive, which is not followed"
    if entry.flags & _ENCRYPTED:
        return "is encrypted; make the archive anew without a password"
    if entry.method not in (_STORED, _DEFLATED):
        method = _METHODS.get(entry.method, f"method {entry.method}")
        return f"is compressed with {method}; make the archive anew with `zip -0` (or Deflate)"
    most = MAX_MEMBER if entry.method == _STORED else MAX_INFLATED
    if entry.size > most:
        return f"has {entry.size >> 20:,} MiB; the most is {most >> 20}"
    if entry.method == _STORED and entry.packed != entry.size:
        return "is damaged (its two sizes in the zip archive differ)"
    if entry.offset + _LOCAL.size + entry.packed > directory:
        return "is cut off, or lies outside the archive"
    return ""


def _refuse_overlap(spans: list[tuple[int, int, bytes]]) -> None:
    """Raises FileFault if two files have the same bytes, as in archives made to unpack to any size."""
    spans.sort()
    for (_, end, first), (begin, _, second) in itertools.pairwise(spans):
        if begin < end + _LOCAL.size:
            names = " and ".join(printable(os.fsdecode(each), 200) for each in (first, second))
            raise FileFault(f"is damaged, or made to do harm: {names} lie in the same place")


def _directory(file: io.BufferedReader) -> tuple[int, int]:
    """Where the central directory begins and ends."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _MAX_COMMENT - _END.size - _LOCATOR.size)
    file.seek(start)
    tail = file.read(size - start)
    at = tail.rfind(_END_SIGNATURE, 0, max(0, len(tail) - _END.size + len(_END_SIGNATURE)))
    if at < 0:
        raise FileFault("is no zip archive, or cut off: the list of its files, which is at its end, is missing")
    _, disk, first_disk, _, count, length, offset, _ = _END.unpack_from(tail, at)
    end = start + at
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size :].startswith(b"PK\6\7"):
        _, _, end, _ = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        file.seek(min(end, size))
        record = file.read(_END_64.size)
        if len(record) < _END_64.size or not record.startswith(b"PK\6\6"):
            raise FileFault("is damaged (the end record of zip64 is not where it should be)")
        _, _, _, _, disk, first_disk, _, count, length, offset = _END_64.unpack(record)
    if disk or first_disk:
        raise FileFault("is one of several parts of a zip archive; join them with `zip -s 0 in.zip --out whole.zip`")
    if offset + length != end:
        raise FileFault("is damaged, or more than a zip archive (such as a program that unpacks itself)")
    return offset, offset + length if count else offset


def _entries(file: io.BufferedReader, start: int, end: int) -> Iterator[tuple[int, _Entry]]:
    """(place, entry) of each file listed from `start` on. Raises FileFault."""
    at = start
    file.seek(at)
    while at < end:
        head = file.read(_ENTRY.size)
        if len(head) < _ENTRY.size or not head.startswith(b"PK\1\2"):
            raise FileFault("is damaged (in the list of its files)")
        _, made_by, _, flags, method, _, _, checksum, packed, size, *lengths, _, _, attributes, offset = _ENTRY.unpack(
            head
        )
        rest = file.read(sum(lengths))
        if len(rest) < sum(lengths):
            raise FileFault("is damaged (in the list of its files)")
        name, extra = rest[: lengths[0]], rest[lengths[0] : lengths[0] + lengths[1]]
        numbers = iter(_extra(extra, 1))
        size, packed, offset = (_wide(each, numbers) for each in (size, packed, offset))
        mode = attributes >> 16 if made_by >> 8 == _ON_UNIX else 0
        yield at, _Entry(_named(name, flags, extra), flags, method, checksum, packed, size, offset, mode)
        at += _ENTRY.size + sum(lengths)


def _wide(number: int, more: Iterator[int]) -> int:
    return next(more, number) if number == _IN_EXTRA else number


def _extra(extra: bytes, wanted: int) -> tuple[int, ...]:
    """The 64-bit numbers in the block of this kind."""
    block = _block(extra, wanted)
    return struct.unpack(f"<{len(block) // 8}Q", block[: len(block) // 8 * 8])


def _block(extra: bytes, wanted: int) -> bytes:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == wanted:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return b""


def _named(name: bytes, flags: int, extra: bytes) -> bytes:
    """The name in UTF-8: what says that it is, or looks so; else Info-ZIP's Unicode name, else from code page 437."""
    try:
        name.decode("utf-8")
        return name
    except UnicodeDecodeError:
        unicode = _block(extra, 0x7075)
        is_current = len(unicode) > 5 and int.from_bytes(unicode[1:5], "little") == zlib.crc32(name)
        return unicode[5:] if is_current or (flags & _UTF_8 and unicode) else name.decode("cp437").encode()
