"""The files that were sent to another machine. A part of the program of far_side.py, which is sent over ssh."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modules.run.remote.far_files import read, sha256, write
from modules.run.remote.far_messages import Refused


class SentFiles:
    """Those below code/ and data/ of the folder `home`; its manifest.json has their hashes."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._manifest: dict[str, list[Any]] | None = None  # path -> size, date here, date there, sha256
        self._named: set[str] = set()  # that were compared
        self._has_failed = False  # a piece of a file: no more of them are taken, and this was said

    def place(self, path: str) -> str:
        """That of a path which the other side names. Raises Refused unless it is below code/ or data/."""
        parts = path.split("/")
        if parts[0] not in ("code", "data") or len(parts) < 2 or any(each in ("", ".", "..") for each in parts):
            raise Refused(f"{path!r} is no place for a file")
        return os.path.join(self._home, *parts)

    def unknown(self, files: Sequence[tuple[str, int, int]]) -> list[int]:
        """The numbers of the files (path, size, date) that are not known to be here; of all, the paths are noted."""
        manifest = self._read_manifest()
        needed = []
        for number, (path, size, date) in enumerate(files):
            self._named.add(unicodedata.normalize("NFC", path))  # as a file system there may write it otherwise
            entry = manifest.get(path)
            if not (entry and entry[:2] == [size, date] and self._is_unchanged(path, entry)):
                needed.append(number)
        return needed

    def offset(self, path: str, size: int, date: int, digest: str) -> int:
        """Where a file is to go on; -1: it is here."""
        if self._has(path, self.place(path), size, digest):
            self._remember(path, size, date, digest)
            return -1
        partial = self._partial(path, digest)
        kept = os.path.getsize(partial) if os.path.exists(partial) else 0
        if kept > size:
            os.unlink(partial)
            return 0
        return kept

    def put(self, piece: Mapping[str, Any], data: bytes) -> None:
        """Add a piece of a file. Raises Refused and OSError once; nothing is taken after that."""
        if self._has_failed:
            return
        self._has_failed = True
        self._put(piece, data)
        self._has_failed = False

    def _put(self, piece: Mapping[str, Any], data: bytes) -> None:
        path, digest = piece["path"], piece["sha256"]
        place, partial = self.place(path), self._partial(path, digest)
        os.makedirs(os.path.dirname(partial), exist_ok=True)
        with open(partial, "ab") as file:
            if file.seek(0, os.SEEK_END) != piece["offset"]:
                raise Refused(f"{path} is not where it was left")
            file.write(data)
        if not piece["last"]:
            return
        if sha256(partial) != digest:
            os.unlink(partial)
            raise Refused(f"{path} has changed while it was sent, or was damaged on its way; start again")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)  # a folder here that is a file there now
        os.replace(partial, place)
        self._remember(path, piece["size"], piece["date"], digest)

    def unnamed(self, top: str) -> Iterator[str]:
        """The paths of the files of a sent folder that were not compared. What was made in code/ there is none of
        them: .venv, __pycache__, tandem.egg-info."""
        is_code = top == "code"
        for folder, folders, files in os.walk(os.path.join(self._home, top) if is_code else self.place(top)):
            if is_code:
                folders[:] = [each for each in folders if not each.startswith((".", "__")) and ".egg" not in each]
                files = [each for each in files if not each.startswith(".")]
            for each in files:
                path = os.path.relpath(os.path.join(folder, each), self._home)
                if unicodedata.normalize("NFC", path) not in self._named:
                    yield path

    def require_removable(self, path: str) -> None:
        """Raises Refused if a link leads to it."""
        place = self.place(path)
        kind, *below = os.path.dirname(path).split("/")
        own = os.path.join(os.path.realpath(os.path.join(self._home, kind)), *below)
        if os.path.realpath(os.path.dirname(place)) != own:
            raise Refused(f"{place} is not in the folder that is sent, and behind a link; remove it, or the link")

    def remove(self, path: str) -> None:
        """Raises OSError."""
        os.unlink(self.place(path))
        self._read_manifest().pop(path, None)

    def save(self) -> None:
        """What is known of them."""
        if self._manifest is not None:
            write(os.path.join(self._home, "manifest.json"), json.dumps(self._manifest))

    def forget(self) -> None:
        """All of them, as they are removed."""
        self._manifest = None

    def _has(self, path: str, place: str, size: int, digest: str) -> bool:
        if not os.path.isfile(place) or os.path.getsize(place) != size:
            return False
        entry = self._read_manifest().get(path)
        is_known = entry is not None and entry[0] == size and self._is_unchanged(path, entry)
        return bool((entry[3] if entry is not None and is_known else sha256(place)) == digest)

    def _is_unchanged(self, path: str, entry: list[Any]) -> bool:
        try:
            found = os.stat(self.place(path))
        except OSError:
            return False
        return [found.st_size, found.st_mtime_ns] == [entry[0], entry[2]]

    def _remember(self, path: str, size: int, date: int, digest: str) -> None:
        there = os.stat(self.place(path)).st_mtime_ns
        self._read_manifest()[path] = [size, date, there, digest]

    def _partial(self, path: str, digest: str) -> str:
        name = hashlib.sha256(f"{path}\0{digest}".encode("utf-8", "surrogateescape")).hexdigest()
        return os.path.join(self._home, "partial", name)

    def _read_manifest(self) -> dict[str, list[Any]]:
        if self._manifest is None:
            try:
                self._manifest = json.loads(read(os.path.join(self._home, "manifest.json"), -1))
            except ValueError:  # then what is here is hashed
                self._manifest = {}
        return self._manifest
