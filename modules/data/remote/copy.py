"""The copy of an address on this machine: what is there, what is missing, and bringing it up to date.

Beside the folder with the files lie `list`, a line of JSON for each file that is complete, `complete` while all are,
and `partial`, with those that are not: they are named after what they are part of, and a later start goes on there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.config import DataError
from modules.config.sections.concept import IMAGE_SUFFIXES, LABEL_SUFFIX, METADATA_SUFFIXES
from modules.data.remote.remote_file import Changed, RemoteFile, Source
from modules.data.remote.s3 import S3Source
from modules.data.remote.web import HubSource, WebSource
from modules.files import (
    FileFault,
    Record,
    decode_json,
    is_shard,
    open_for_writing,
    printable,
    read_lines,
    remove_tree,
    replacing,
    validate_record,
    write_fault,
)
from modules.files.addresses import MAX_FILES, VARIABLE, copy_of, copy_place, parse_address

Progress = Callable[[int, int], None]  # bytes that are there, of all; what it raises stops the download
_SPARE: Final = 1 << 30  # bytes that stay free on the disk
_AT_ONCE: Final = 8  # files
_TRIES: Final = 5  # in a row that bring nothing
_WAIT_S: Final = 0.5  # after the first of them, then twice as long each time
_LOOK_EVERY_S: Final = 0.2
_TEXTS: Final = frozenset({"", ".caption", ".json", LABEL_SUFFIX, ".tsv", ".txt", *METADATA_SUFFIXES})
_OF_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)


class _Line(Record):
    """A complete file; `mtime_ns` is that of the copy."""

    name: str
    size: Annotated[int, Field(ge=0)]
    tag: str
    mtime_ns: int


class Copy:
    """The copy of one address, as it is when the object is made; nothing is asked there before `compare`."""

    def __init__(self, text: str, caption_extensions: Collection[str] = ()) -> None:
        self.text, self.place, self.root = text, copy_place(text), Path(copy_of(text))
        self._suffixes = {*_TEXTS, *IMAGE_SUFFIXES, *(each.lower() for each in caption_extensions)}
        self._source: Source | None = None
        self.wanted: dict[str, RemoteFile] = {}  # by name
        self.missing: list[RemoteFile] = []
        self.unread = 0  # files there that no run reads

    @property
    def is_complete(self) -> bool:
        """Whether an earlier `update` has ended, and none has begun since."""
        return (self.place / "complete").exists()

    @property
    def missing_bytes(self) -> int:
        """How many are to be downloaded."""
        return sum(each.size - min(each.size, _size(self._partial(each))) for each in self.missing)

    def compare(self) -> None:
        """Ask what is there. Raises DataError if nothing is, or nobody answers."""
        try:
            self._source = _source(self.text)
            for file in self._source.files():
                is_read = is_shard(file.name) or os.path.splitext(file.name)[1].lower() in self._suffixes
                if is_read and not any(part.startswith(".") for part in file.name.split("/")):
                    self.wanted[file.name] = file
                else:
                    self.unread += 1
                if len(self.wanted) > MAX_FILES:
                    raise FileFault(f"holds more than {MAX_FILES:,} files; pack them into tar archives")
        except (FileFault, OSError) as error:
            raise self._error(error) from error
        if not self.wanted:
            raise DataError(f"concepts: there is nothing at {self.text!r} that a run reads.", "Correct the address.")
        lines = self._lines()
        self.missing = [file for file in self.wanted.values() if not self._is_there(file, lines.get(file.name))]

    def update(self, progress: Progress) -> None:
        """Download what `compare` has found missing, and remove what is not there any more. Raises DataError, and
        what `progress` raises."""
        if not self.missing and self.is_complete and len(self._lines()) == len(self.wanted):
            return
        total = sum(file.size for file in self.wanted.values())
        try:
            for folder in (self.root, self.place / "partial"):
                folder.mkdir(parents=True, exist_ok=True)
            self._check_space()
            (self.place / "complete").unlink(missing_ok=True)
            lines = self._lines()
            for name in lines.keys() - self.wanted.keys():
                (self.root / name).unlink(missing_ok=True)
            _Download(self, total - self.missing_bytes, total).run(progress)
            lines = self._lines()
            with replacing(self.place / "list") as partial, os.fdopen(open_for_writing(partial), "wb") as file:
                file.writelines(_dump(lines[name]) for name in self.wanted)
            remove_tree(self.place / "partial")
            os.close(open_for_writing(self.place / "complete"))
        except (FileFault, OSError) as error:
            raise self._error(error) from error

    def fetch(self, file: RemoteFile, stop: threading.Event, count: Callable[[int], None]) -> None:
        """Download one file, from where an earlier try has ended; `count` gets the bytes that come, negative ones if it
        begins anew. Raises FileFault or OSError."""
        assert self._source is not None
        partial, tries, restarts = self._partial(file), 0, 0
        while True:
            start = _size(partial)
            try:
                with os.fdopen(open_for_writing(partial, append=True), "ab") as opened:
                    for piece in self._source.read(file, start) if start < file.size else ():
                        if stop.is_set():
                            return
                        if opened.tell() + len(piece) > file.size:
                            raise FileFault(f"has more bytes in {printable(file.name, 200)} than the server has said")
                        opened.write(piece)
                        count(len(piece))
                        tries = 0
                    opened.flush()
                    os.fsync(opened.fileno())
                if _size(partial) == file.size:
                    break
                raise OSError("the connection was cut off")
            except Changed:
                restarts += 1
                count(-start)
                partial.unlink(missing_ok=True)
                if restarts > _TRIES:
                    raise FileFault("changes while it is downloaded; try again") from None
            except OSError as error:
                tries += 1
                if tries >= _TRIES or error.errno in _OF_DISK:
                    raise
                stop.wait(_WAIT_S * 2 ** (tries - 1))
        target = self.root / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(target)

    def note(self, file: RemoteFile) -> None:
        """Add a file that has come to the list."""
        line = _Line(name=file.name, size=file.size, tag=file.tag, mtime_ns=os.stat(self.root / file.name).st_mtime_ns)
        with os.fdopen(open_for_writing(self.place / "list", append=True), "ab") as opened:
            opened.write(_dump(line))

    def _check_space(self) -> None:
        free, needed = shutil.disk_usage(self.place).free, self.missing_bytes
        if needed + _SPARE > free:
            raise FileFault(
                f"needs {needed / 1e9:,.1f} GB more in {str(self.place)!r} (and 1.1 GB to spare), but "
                f"{free / 1e9:,.1f} GB are free; {VARIABLE} names another folder"
            )

    def _partial(self, file: RemoteFile) -> Path:
        identity = json.dumps([file.name, file.size, file.tag])
        return self.place / "partial" / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def _is_there(self, file: RemoteFile, line: _Line | None) -> bool:
        if line is None or (line.size, line.tag) != (file.size, file.tag):
            return False
        try:
            found = os.stat(self.root / file.name)
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (line.size, line.mtime_ns)

    def _lines(self) -> dict[str, _Line]:
        found = {}
        with suppress(FileFault, OSError):
            for text in read_lines(self.place / "list"):
                with suppress(FileFault):  # torn by a power cut
                    line = validate_record(_Line, decode_json(text))
                    found[line.name] = line
        return found

    def _error(self, error: FileFault | OSError) -> DataError:
        if isinstance(error, FileFault):
            what = str(error)
        elif error.errno in _OF_DISK:
            what = f"cannot be copied to {str(self.place)!r}: {write_fault(error, self.place)}"
        else:
            what = f"cannot be downloaded: {error}"
        return DataError(
            f"concepts: {self.text!r} {printable(what, 400)}.", "Another start goes on with what is there already."
        )


class _Download:
    """The threads that download the missing files of a copy."""

    def __init__(self, copy: Copy, done: int, total: int) -> None:
        self._copy, self._done, self._total = copy, done, total
        self._left: Iterator[RemoteFile] = iter(copy.missing)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._errors: list[Exception] = []

    def run(self, progress: Progress) -> None:
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(_AT_ONCE)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                progress(self._done, self._total)
                next(thread for thread in [*filter(threading.Thread.is_alive, threads), threads[0]]).join(_LOOK_EVERY_S)
        finally:
            self._stop.set()
        if self._errors:
            raise self._errors[0]
        progress(self._total, self._total)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    file = next(self._left, None)
                if file is None:
                    return
                self._copy.fetch(file, self._stop, self._count)
                if not self._stop.is_set():
                    with self._lock:
                        self._copy.note(file)
        except (FileFault, OSError) as error:
            self._errors.append(error)
            self._stop.set()

    def _count(self, more: int) -> None:
        with self._lock:
            self._done += more


def _source(text: str) -> Source:
    address = parse_address(text)
    kinds: dict[str, Callable[..., Source]] = {"s3": S3Source, "hf": HubSource}
    return kinds.get(address.scheme, WebSource)(address)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _dump(line: _Line) -> bytes:
    return line.model_dump_json().encode() + b"\n"
