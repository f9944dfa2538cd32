"""The copy of an address on this machine: what is there, what is missing, and bringing it up to date.

Beside the folder with the files lie `list`, a line of JSON for each of them, `complete` while all are there, `kinds`,
the suffixes of captions that runs have asked for, and `partial`, what is downloaded: its files are named after what
they are part of, so that a later start goes on there, and take their places once all have come.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import posixpath
import shutil
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.config import DataError
from modules.config.sections.concept import IMAGE_SUFFIXES, LABEL_SUFFIX, METADATA_SUFFIXES
from modules.data.remote.remote_file import WAIT_S, Changed, RemoteFile, Source, local_name
from modules.data.remote.s3 import S3Source
from modules.data.remote.web import HubSource, WebSource
from modules.files import (
    FileFault,
    Record,
    decode_json,
    is_shard,
    open_for_writing,
    open_regular,
    printable,
    read_lines,
    remove_tree,
    replacing,
    validate_record,
    write_fault,
)
from modules.files.addresses import MAX_FILES, VARIABLE, copy_of, copy_place, parse_address

Progress = Callable[[int, int], None]  # bytes that are there, of all; what it raises stops the download
Look = Callable[[int], None]  # called with the files that are found so far; what it raises stops the questions
_SPARE: Final = 1 << 30  # bytes that stay free on the disk
_AT_ONCE: Final = 8  # files
_TRIES: Final = 5  # in a row that bring less than
_ENOUGH: Final = 64 << 10  # bytes
_LOOK_EVERY_S: Final = 0.2
_TEXTS: Final = frozenset({"", ".caption", ".json", LABEL_SUFFIX, ".token", ".tsv", ".txt", *METADATA_SUFFIXES})
_OF_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)


class Unreachable(DataError):
    """What is there cannot be asked: nobody answers."""


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
        self._former_kinds = set[str]()
        self._own_kinds = {each.lower() for each in caption_extensions} - _TEXTS - {*IMAGE_SUFFIXES}
        self._source: Source | None = None
        self.wanted: dict[str, RemoteFile] = {}  # by name
        self.missing: list[RemoteFile] = []
        self.strays: list[Path] = []  # files of the copy that are not there, or are no longer
        self.unread = 0  # files there that no run reads
        self.odd: list[str] = []  # those of them that a run would read, if they could have their names here

    @property
    def is_complete(self) -> bool:
        """Whether an earlier `update` has ended, and none since has begun to replace files."""
        return (self.place / "complete").exists()

    @property
    def missing_bytes(self) -> int:
        """How many are to be downloaded."""
        return sum(each.size - min(each.size, _size(self._partial(each))) for each in self.missing)

    def compare(self, look: Look = lambda found: None) -> None:
        """Ask what is there. Raises DataError if nothing is, Unreachable if nobody answers, and what `look` raises."""
        self._former_kinds = self._kinds()
        try:
            self._source = _source(self.text)
            found = _Listing(self._source).run(look)
        except (FileFault, OSError) as error:
            raise self._error(error) from error
        self.wanted, self.unread, self.odd = {}, 0, []
        for file in found:
            if not self._is_read(file.name):
                self.unread += 1
                continue
            try:
                name = local_name(file.name)
                self.wanted[name] = replace(file, name=name)
            except FileFault:
                self.odd.append(file.name)
        for name in _folders(self.wanted) & self.wanted.keys():  # a store of objects has both
            del self.wanted[name]
            self.odd.append(name)
        if not self.wanted:
            odd = f" ({printable(repr(self.odd[0]), 200)} is no name for a file here)" if self.odd else ""
            raise DataError(
                f"concepts: there is nothing at {self.text!r} that a run reads{odd}.", "Correct the address."
            )
        lines = self._lines()
        self.missing = [file for file in self.wanted.values() if not self._is_there(file, lines.get(file.name))]
        self.strays = list(self._found_strays())

    def only_add(self) -> bool:
        """Have `update` only download files of kinds that no run has asked for before, as another one trains from the
        copy. Returns whether what is there differs from the copy in anything else."""
        lines = self._lines()
        files = {
            name: self.wanted.get(name) or RemoteFile(name, "", line.size, line.tag) for name, line in lines.items()
        }
        kinds, missing = self._own_kinds - self._former_kinds, self.missing
        new = [file for file in missing if _suffix(file.name) in kinds and not _folders([file.name]) & files.keys()]
        differs = len(new) < len(self.missing) or not lines.keys() <= self.wanted.keys()
        self.wanted, self.missing, self.strays = {**files, **{file.name: file for file in new}}, new, []
        return differs

    def update(self, progress: Progress) -> None:
        """Download what `compare` has found missing, then put it in place and remove what is not there any more.

        Raises DataError, and what `progress` raises; the copy is as before while `is_complete`.
        """
        if not self.missing and not self.strays and self.is_complete and len(self._lines()) == len(self.wanted):
            return
        total = sum(file.size for file in self.wanted.values())
        try:
            for folder in (self.root, self.place / "partial"):
                folder.mkdir(parents=True, exist_ok=True)
            if self.missing:
                self._check_space()
            _Download(self, total - self.missing_bytes, total).run(progress)
            self._put_in_place()
        except (FileFault, OSError) as error:
            raise self._error(error) from error

    def fetch(self, file: RemoteFile, stop: threading.Event, count: Callable[[int], None]) -> None:
        """Download one file to `partial`, from where an earlier try has ended; `count` gets the bytes that come,
        negative ones if it begins anew. Raises FileFault or OSError."""
        assert self._source is not None
        partial, tries, restarts = self._partial(file), 0, 0
        while True:
            start = _size(partial)
            came = 0
            try:
                if start and not file.tag:  # it may be another one by now
                    raise Changed
                with os.fdopen(open_for_writing(partial, append=True), "ab") as opened:
                    for piece in self._source.read(file, start) if start < file.size else ():
                        if stop.is_set():
                            return
                        if opened.tell() + len(piece) > file.size:
                            raise FileFault(f"has more bytes in {printable(file.name, 200)} than the server has said")
                        opened.write(piece)
                        count(len(piece))
                        came += len(piece)
                    opened.flush()
                    os.fsync(opened.fileno())
                if _size(partial) != file.size:
                    raise OSError("the connection was cut off")
                if file.digest and _digest(partial, len(file.digest), stop) != file.digest and not stop.is_set():
                    raise Changed
                return
            except Changed:
                restarts += 1
                count(-_size(partial))
                partial.unlink(missing_ok=True)
                if restarts > _TRIES:
                    raise FileFault("changes while it is downloaded, or comes damaged; try again") from None
            except OSError as error:
                tries = 1 if came >= _ENOUGH else tries + 1
                if tries >= _TRIES or error.errno in _OF_DISK:
                    raise
                stop.wait(WAIT_S * 2 ** (tries - 1))

    def _put_in_place(self) -> None:
        """What has been downloaded takes the place of what was there."""
        (self.place / "complete").unlink(missing_ok=True)
        with replacing(self.place / "kinds") as partial, os.fdopen(open_for_writing(partial), "wb") as file:
            file.write(json.dumps(sorted(self._former_kinds | self._own_kinds)).encode() + b"\n")
        for stray in self.strays:
            stray.unlink(missing_ok=True)
        for folder, _, _ in os.walk(self.root, topdown=False):
            if folder != str(self.root):
                with suppress(OSError):  # it is not empty
                    os.rmdir(folder)
        with os.fdopen(open_for_writing(self.place / "list", append=True), "ab") as opened:
            for each in self.missing:
                target = self.root / each.name
                target.parent.mkdir(parents=True, exist_ok=True)
                self._partial(each).replace(target)
                line = _Line(name=each.name, size=each.size, tag=each.tag, mtime_ns=os.stat(target).st_mtime_ns)
                opened.write(_dump(line))
        lines = self._lines()
        with replacing(self.place / "list") as partial, os.fdopen(open_for_writing(partial), "wb") as file:
            file.writelines(_dump(lines[name]) for name in self.wanted)
        remove_tree(self.place / "partial")
        os.close(open_for_writing(self.place / "complete"))

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

    def _is_read(self, name: str) -> bool:
        kinds = {*_TEXTS, *IMAGE_SUFFIXES} | self._former_kinds | self._own_kinds
        return (is_shard(name) or _suffix(name) in kinds) and not any(part.startswith(".") for part in name.split("/"))

    def _is_there(self, file: RemoteFile, line: _Line | None) -> bool:
        if line is None or (line.size, line.tag) != (file.size, file.tag):
            return False
        try:
            found = os.lstat(self.root / file.name)
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (line.size, line.mtime_ns) and stat.S_ISREG(found.st_mode)

    def _found_strays(self) -> Iterator[Path]:
        kept = self.wanted.keys() | _folders(self.wanted)
        for folder, folders, files in os.walk(self.root):
            below = os.path.relpath(folder, self.root).replace(os.sep, "/")
            links = (each for each in folders if os.path.islink(os.path.join(folder, each)))
            for name, wanted in (*((each, self.wanted) for each in files), *((each, kept) for each in links)):
                if posixpath.normpath(f"{below}/{name}") not in wanted:
                    yield Path(folder, name)

    def _kinds(self) -> set[str]:
        with suppress(FileFault, OSError):
            found = decode_json(b"".join(read_lines(self.place / "kinds")))
            return {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()
        return set()

    def _lines(self) -> dict[str, _Line]:
        found = {}
        with suppress(FileFault, OSError):
            for text in read_lines(self.place / "list"):
                with suppress(FileFault):  # torn by a power cut
                    line = validate_record(_Line, decode_json(text))
                    found[line.name] = line
        return found

    def _error(self, error: FileFault | OSError) -> DataError:
        kind = DataError
        if isinstance(error, FileFault):
            what = str(error)
        elif error.errno in _OF_DISK:
            what = f"cannot be copied to {str(self.place)!r}: {write_fault(error, self.place)}"
        else:
            kind, what = Unreachable, f"cannot be downloaded: {error}"
        hint = "Another start goes on with what is there already."
        if self.is_complete:
            hint += f" The complete copy of an earlier run is the folder {str(self.root)!r}, which a path may name."
        return kind(f"concepts: {self.text!r} {printable(what, 400)}.", hint)


class _Listing:
    """The thread that asks what is there."""

    def __init__(self, source: Source) -> None:
        self._source, self._stop = source, threading.Event()
        self._found: list[RemoteFile] = []
        self._errors: list[Exception] = []

    def run(self, look: Look) -> list[RemoteFile]:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                look(len(self._found))
                thread.join(_LOOK_EVERY_S)
        finally:
            self._stop.set()
        if self._errors:
            raise self._errors[0]
        return self._found

    def _work(self) -> None:
        try:
            for file in self._source.files():
                if self._stop.is_set():
                    return
                self._found.append(file)
                if len(self._found) > MAX_FILES:
                    raise FileFault(f"holds more than {MAX_FILES:,} files; pack them into tar archives")
        except Exception as error:  # noqa: BLE001  # raised by `run`
            self._errors.append(error)


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
        except Exception as error:  # noqa: BLE001  # raised by `run`
            self._errors.append(error)
            self._stop.set()

    def _count(self, more: int) -> None:
        with self._lock:
            self._done += more


def _source(text: str) -> Source:
    address = parse_address(text)
    kinds: dict[str, Callable[..., Source]] = {"s3": S3Source, "hf": HubSource}
    return kinds.get(address.scheme, WebSource)(address)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _folders(names: Iterable[str]) -> set[str]:
    """All that the files of these names are in."""
    found = set[str]()
    for name in names:
        while (name := posixpath.dirname(name)) and name not in found:
            found.add(name)
    return found


def _digest(file: Path, length: int, stop: threading.Event) -> str:
    """The SHA-256 (64 digits) of a file, or what git calls a blob (40)."""
    found = hashlib.sha256() if length == 64 else hashlib.sha1(b"blob %d\0" % _size(file), usedforsecurity=False)
    with open_regular(file) as opened:
        while not stop.is_set() and (piece := opened.read(1 << 20)):
            found.update(piece)
    return found.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _dump(line: _Line) -> bytes:
    return line.model_dump_json().encode() + b"\n"
