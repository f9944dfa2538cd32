"""What was there before proposals were written: enough to put it back, on disk before the first file is replaced."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, field_validator

from modules.annotation.proposals import BEFORE, JOURNAL, Header, ProposalSet, check_below
from modules.config import ConfigError
from modules.config.file_access import mode_beside
from modules.files import (
    FileFault,
    Record,
    decode_json,
    open_for_writing,
    printable,
    read_bytes,
    read_lines,
    remove_tree,
    replacing,
    validate_record,
)

LARGEST_FILE: Final = 256 << 20  # bytes of a mask; caption files are limited to 1 MiB
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_Digest = Annotated[str, Field(min_length=64, max_length=64)]


class Entry(Record):
    """A file before and after: SHA-256 of its content, None if it did not exist; `mode` and `mtime_ns` of before."""

    file: Annotated[str, Field(min_length=1, max_length=4096)]  # relative to the set's folder of images
    before: _Digest | None
    after: _Digest
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0  # never setuid: the journal may come from somebody else
    mtime_ns: Annotated[int, Field(ge=-(2**62), le=2**62)] = 0

    @field_validator("before", "after")
    @classmethod
    def _is_digest(cls, digest: str | None) -> str | None:
        if digest is not None and _HASH.fullmatch(digest) is None:
            raise ValueError("no SHA-256")
        return digest

    @field_validator("file")
    @classmethod
    def _is_below(cls, file: str) -> str:
        check_below(file)
        return file


@dataclass(frozen=True)
class Found:
    """A file as it is now; `data` is None if there is none."""

    data: bytes | None
    mode: int = 0
    mtime_ns: int = 0

    @property
    def digest(self) -> str | None:
        """SHA-256 of the content."""
        return None if self.data is None else digest_of(self.data)


class Journal:
    """The journal of one set."""

    def __init__(self, proposals: ProposalSet) -> None:
        self._file = proposals.path / JOURNAL
        self._before = proposals.path / BEFORE

    def entries(self) -> dict[str, Entry]:
        """By file. Raises ConfigError."""
        try:
            found = [validate_record(Entry, decode_json(line)) for line in read_lines(self._file)]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{printable(self._file)} cannot be read: {error.strerror or error}.") from None
        except FileFault as fault:
            raise ConfigError(f"{printable(self._file)} {fault}.") from None
        return {entry.file: entry for entry in found}

    def record(self, changes: Iterable[tuple[Entry, bytes | None]]) -> None:
        """Keep these files as they are, and the entries, safely on disk. Raises OSError."""
        self._before.mkdir(exist_ok=True)
        lines = []
        for entry, data in changes:
            kept = self._before / str(entry.before)
            if data is not None and not kept.exists():
                with replacing(kept) as partial:
                    _write_synced(partial, data)
            lines.append(json.dumps(entry.model_dump()) + "\n")
        with os.fdopen(open_for_writing(self._file, append=True), "rb+") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # of a program that was killed: nothing was written after such a line
                    file.truncate(sum(len(line) + 1 for line in read_lines(self._file)))
            file.seek(0, os.SEEK_END)
            file.write("".join(lines).encode("ascii"))
            file.flush()
            os.fsync(file.fileno())

    def content(self, entry: Entry) -> bytes:
        """The content before. Raises OSError or FileFault, also if it was damaged."""
        data = read_bytes(self._before / str(entry.before), LARGEST_FILE)
        if digest_of(data) != entry.before:
            raise FileFault("is damaged in the journal")
        return data

    def replace(self, entries: Iterable[Entry]) -> None:
        """Keep only these entries; without any, there is no journal any more. Raises OSError."""
        left = list(entries)
        if not left:
            self._file.unlink(missing_ok=True)
            remove_tree(self._before)
            return
        with replacing(self._file) as partial:
            _write_synced(partial, "".join(json.dumps(each.model_dump()) + "\n" for each in left).encode("ascii"))


def existing_folder(header: Header) -> Path:
    """The folder of the images. Raises ConfigError if it does not exist."""
    root = Path(header.folder)
    if not root.is_dir():
        raise ConfigError(f"The folder of the images, {printable(root)}, does not exist any more.")
    return root


def digest_of(data: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _write_synced(path: Path, data: bytes) -> None:
    with os.fdopen(open_for_writing(path), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_now(path: Path) -> Found:
    """The file as it is now. Raises OSError or FileFault, also for a link."""
    if path.is_symlink():
        raise FileFault("is a link; copy the file there to have it changed")
    try:
        status = path.stat()
        return Found(read_bytes(path, LARGEST_FILE), status.st_mode & 0o777, status.st_mtime_ns)
    except FileNotFoundError:
        return Found(None)


def write_beside(path: Path, data: bytes, *, mode: int = 0, mtime_ns: int = 0) -> None:
    """Write a file as a whole, with the permissions and the time of modification that are given. Raises OSError.

    Without permissions it gets those that fit its folder. It is not synced: what it replaces is, in the journal.
    """
    mode = mode or mode_beside(path)
    with replacing(path) as partial:
        with os.fdopen(open_for_writing(partial), "wb") as file:
            file.write(data)
        if mode:
            os.chmod(partial, mode)
        if mtime_ns:
            os.utime(partial, ns=(mtime_ns, mtime_ns))


def place_of(root: Path, relative: str) -> Path:
    """The path of a file below the folder of images. Raises FileFault if links lead out of that."""
    path = root / relative
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise FileFault("is in a folder that is a link leading elsewhere; annotate that folder itself")
    return path
