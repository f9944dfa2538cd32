"""What a shard holds: of tar archives (the layout of webdataset), and what zip archives and tables have in common."""

from __future__ import annotations

import io
import os
import posixpath
from array import array
from dataclasses import dataclass, field
from typing import Final, cast

from modules.files.display import printable
from modules.files.opening import FileFault, open_file
from modules.files.tar_headers import (
    BLOCK,
    EXTENDED,
    FOLDER,
    MAX_EXTENDED,
    REGULAR,
    SPARSE,
    Extension,
    parse_tar_header,
)

MAX_MEMBERS: Final = 1 << 22  # of a shard
MAX_MEMBER: Final = 1 << 30  # bytes
_MAX_NAME: Final = 4096  # bytes
_MAX_FAULTS: Final = 1000  # listed of one shard
_PADDING: Final = 64 << 10  # bytes of zeros that programs write behind the end of a tar archive
_FORBIDDEN: Final = {b"\\": "a backslash", b":": "a colon", b"\0": "a null character"}  # not a name on all systems
_SHOWN: Final = 200  # characters of a name


@dataclass
class Contents:
    """The files in a shard, in any order: names below it, where each begins, and how many bytes it has.

    Of a parquet file, in which images are compressed, the place is the number of the row; of a zip archive, where its
    list has the file.
    """

    names: list[bytes] = field(default_factory=list)
    places: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    faults: list[tuple[str, str]] = field(default_factory=list)  # name, or "" for the shard, and what is wrong
    unlisted_faults: int = 0

    def add(self, name: bytes, place: int, size: int) -> None:
        """Add a file. Raises FileFault if they are too many."""
        if len(self.names) >= MAX_MEMBERS:
            raise FileFault(f"holds more than {MAX_MEMBERS:,} files; make several of it")
        self.names.append(name)
        self.places.append(place)
        self.sizes.append(size)

    def refuse(self, name: bytes, what: str) -> None:
        """Note what is wrong with a file, or the shard itself if there is no name."""
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append((printable(os.fsdecode(name), _SHOWN), what))
        else:
            self.unlisted_faults += 1


def read_tar(path: str) -> Contents:
    """The files of a tar archive that is not compressed, from its headers alone: what lies between is not read.

    Of one that is cut off or damaged, those before that, with the fault. Raises OSError, or FileFault if it is none.
    """
    contents = Contents()
    with open_file(path) as opened:
        file = cast("io.FileIO", opened.raw)  # a buffer would read eight blocks for each header
        end = file.seek(0, os.SEEK_END)
        try:
            _read_headers(file, end, contents)
        except FileFault as fault:
            if not contents.names:
                raise
            last = printable(os.fsdecode(contents.names[-1]), _SHOWN)
            contents.refuse(b"", f"it {fault}; what comes after {last} is not read")
    return contents


def _read_headers(file: io.RawIOBase, end: int, contents: Contents) -> None:
    at, extension = 0, Extension()
    while at < end:
        file.seek(at)
        block = file.read(BLOCK) or b""
        if len(block) < BLOCK:
            raise FileFault("is cut off in a header")
        header = parse_tar_header(block)
        at += BLOCK
        if header is None:
            if end - at > _PADDING:
                contents.refuse(b"", f"it ends {end - at:,} bytes before the end of the file, and these are not read")
            return
        if header.kind in EXTENDED:
            if header.size > MAX_EXTENDED:
                raise FileFault(f"has a header of {header.size} bytes")
            data = file.read(header.size) or b""
            if len(data) < header.size:
                raise FileFault("is cut off in a header")
            extension = extension.extended(header.kind, data)
            at += _blocks(header.size)
            continue
        written, size = extension.name or header.name, header.size if extension.size is None else extension.size
        is_sparse, extension = header.kind == SPARSE or extension.is_sparse, Extension()
        if header.kind == SPARSE:  # its header may have any number of blocks
            raise FileFault(f"has a file with holes ({printable(os.fsdecode(written), _SHOWN)})")
        if header.kind == FOLDER or (header.kind in REGULAR and written.endswith(b"/")):
            at += _blocks(size) if header.kind != FOLDER else 0
            continue
        if header.kind not in REGULAR:
            contents.refuse(written, "is a link or a device in the archive, which is not followed")
            continue
        name = plain_name(written)
        if not name:
            contents.refuse(written, name_fault(written))
        elif is_sparse:
            contents.refuse(written, "is a file with holes; make the archive anew without --sparse")
        elif size > MAX_MEMBER:
            contents.refuse(written, f"has {size >> 20:,} MiB; the most is {MAX_MEMBER >> 20}")
        elif at + size > end:
            contents.refuse(written, "is cut off: the archive ends in it")
        else:
            contents.add(name, at, size)
        at += _blocks(size)
    if at > end:
        contents.refuse(b"", "it is cut off; what is missing is not read")


def _blocks(size: int) -> int:
    """Bytes that data of this size takes."""
    return -(-size // BLOCK) * BLOCK


def plain_name(written: bytes) -> bytes:
    """The path below an archive; b"" for one that may lead elsewhere, on any system (`name_fault`)."""
    if len(written) > _MAX_NAME or written.startswith(b"/") or any(each in written for each in _FORBIDDEN):
        return b""
    if b".." in written.split(b"/"):
        return b""
    name = posixpath.normpath(written)
    return b"" if name == b"." else name


def name_fault(written: bytes) -> str:
    """Why `plain_name` has none for it."""
    if len(written) > _MAX_NAME:
        return f"has a name of {len(written):,} bytes; the most is {_MAX_NAME:,}"
    if written.startswith(b"/") or b".." in written.replace(b"\\", b"/").split(b"/"):
        return "has a name that leads out of the archive"
    for each, what in _FORBIDDEN.items():
        if each in written:
            return f"has {what} in its name, which is not read; make the archive anew with another one"
    return "has no name"
