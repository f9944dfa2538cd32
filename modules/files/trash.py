"""Moving files and folders to the trash, as the freedesktop.org Trash specification 1.0 says, and back.

The trash of the user's home takes what is on the same file system, that of a mounted disk what is on the disk. Where
there is neither, or only one that others can use, or on a system with another kind of trash, it is a folder `.trash`
beside what is removed, with the same layout: nothing is ever copied to another disk, and nothing is deleted.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.files.links import is_link

FALLBACK: Final = ".trash"
_MODE: Final = stat.S_IRWXU
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LONGEST_NAME: Final = 230  # bytes, of 255


@dataclass(frozen=True)
class Trashed:
    """Where something was (`original`), where it is now, and the .trashinfo file that says so."""

    original: Path
    place: Path
    info: Path


def move_to_trash(path: Path) -> Trashed:
    """Move a file or a folder, or the link itself, to the trash. Raises OSError if it cannot be moved."""
    path = path.parent.resolve() / path.name
    device = path.lstat().st_dev
    for trash, top in _trashes(path):
        try:
            if _device(trash) == device:
                return _move(path, _make(trash, None), top)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    return _move(path, _make(path.parent / FALLBACK, path.parent), None)


def restore(trashed: Trashed) -> None:
    """Move it back to where it was. Raises OSError, FileExistsError if something has taken its place."""
    if os.path.lexists(trashed.original):
        raise FileExistsError(errno.EEXIST, "has come there meanwhile", str(trashed.original))
    trashed.original.parent.mkdir(parents=True, exist_ok=True)
    os.rename(trashed.place, trashed.original)
    trashed.info.unlink(missing_ok=True)


def restore_all(trashed: list[Trashed]) -> None:
    """Move everything back, the last first, and out of the list. Raises OSError, with the list of what is left."""
    while trashed:
        restore(trashed[-1])
        trashed.pop()


def _trashes(path: Path) -> Iterator[tuple[Path, Path | None]]:
    """The trash folders that may take a path, best first, each with the folder to which its paths are relative."""
    if sys.platform in ("win32", "darwin"):
        return
    data = os.environ.get("XDG_DATA_HOME") or ""
    yield (Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share") / "Trash", None
    top = _mount_point(path)
    shared = top / ".Trash"
    with suppress(OSError):
        found = shared.lstat()  # made by the administrator: it has to be sticky, and no link
        if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
            yield shared / str(os.getuid()), top
    yield top / f".Trash-{os.getuid()}", top


def _mount_point(path: Path) -> Path:
    """The top folder of the file system of a path."""
    found = path.parent
    while found != found.parent and not os.path.ismount(found):
        found = found.parent
    return found


def _device(trash: Path) -> int:
    """The file system of a folder, or of the one above in which it would be created."""
    found = trash
    while not os.path.exists(found) and found != found.parent:
        found = found.parent
    return found.stat().st_dev


def _make(trash: Path, above: Path | None) -> Path:
    """Create the trash and its two folders for this user alone, unless they exist.

    Raises OSError if they are open to anybody else who cannot read and remove what is in the folder `above`, either.
    """
    trash.parent.mkdir(parents=True, exist_ok=True)
    for folder in (trash, trash / "files", trash / "info"):
        folder.mkdir(mode=_MODE, exist_ok=True)
        if not _is_private(folder, None if above is None else above.stat()):
            raise OSError(errno.EPERM, "is a link, another user's, or open to other users", str(folder))
    return trash


def _is_private(folder: Path, above: os.stat_result | None) -> bool:
    if os.name == "nt":
        return not is_link(folder)
    found, owners, open_to_others = folder.lstat(), {os.getuid()}, 0
    if above is not None:  # as on a disk with one owner and one mode for all that is on it
        owners.add(above.st_uid)
        open_to_others = above.st_mode & _OTHERS
    is_open = found.st_mode & _OTHERS & ~open_to_others
    return stat.S_ISDIR(found.st_mode) and found.st_uid in owners and not is_open


def _move(path: Path, trash: Path, top: Path | None) -> Trashed:
    """Reserve a name by its .trashinfo file, which exists first, as the specification asks; then rename."""
    named = urllib.parse.quote(os.fsencode(path if top is None else path.relative_to(top)))
    text = f"[Trash Info]\nPath={named}\nDeletionDate={time.strftime('%Y-%m-%dT%H:%M:%S')}\n"
    wanted = _short(path.name)
    for name in itertools.chain([wanted], (f"{wanted}.{number}" for number in itertools.count(2))):
        info, place = trash / "info" / f"{name}.trashinfo", trash / "files" / name
        try:
            descriptor = os.open(info, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            if os.path.lexists(place):  # without its info: left there by another program
                info.unlink()
                continue
            os.rename(path, place)
        except OSError as error:
            info.unlink(missing_ok=True)
            error.filename = error.filename or str(path)
            raise
        return Trashed(path, place, info)
    raise AssertionError("itertools.count ends never")


def _short(name: str) -> str:
    """A name that leaves room for a number and the ending of .trashinfo files."""
    path = Path(name)
    room = _LONGEST_NAME - len(os.fsencode(path.suffix))
    encoded = os.fsencode(path.stem)
    return name if len(encoded) <= room else encoded[:room].decode(errors="ignore") + path.suffix
