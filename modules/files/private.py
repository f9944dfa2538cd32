"""Files by which this user allows something: only this user can write them, whatever the umask.

What others could have written is not believed, as with StrictModes of OpenSSH (https://man.openbsd.org/sshd_config).
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from modules.files.opening import FileFault
from modules.files.partial import remove_partial, replacing
from modules.files.reading import decode_json, open_regular

_LIMIT = 8 << 20  # bytes
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(FileFault):
    """Somebody else may have written the file: a whole sentence, with what to do."""


def make_private_folder(folder: Path) -> None:
    """Create a folder, and the missing ones above it, for this user alone. Raises OSError."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)  # parents=True gives others rights


def make_private(folder: Path) -> bool:
    """Whether this is a folder, and no link, that no other user owns or can write; it is made if it is missing."""
    try:
        folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    user = _this_user()
    return stat.S_ISDIR(found.st_mode) and (user is None or (found.st_uid == user and not found.st_mode & stat.S_IWOTH))


def write_private_json(file: Path, data: object) -> None:
    """Write a file that only this user can read, in a folder that only this user can write. Raises OSError."""
    make_private_folder(file.parent)
    found = file.parent.stat()
    if found.st_uid == _this_user() and _is_loose(found):
        file.parent.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
    remove_partial(file.parent, only="")  # of programs that were killed here
    with (
        replacing(file) as partial,
        os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened,
    ):
        opened.write(json.dumps(data, indent=1))


def read_private_json(file: Path) -> object:
    """The data of such a file; raises OSError, FileFault, and NotPrivate if others could have written it."""
    with open_regular(file) as opened:
        for path, found in ((file, os.fstat(opened.fileno())), (file.parent, file.parent.stat())):
            _check_private(path, found)
        data = opened.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise FileFault("is too large")
    return decode_json(data)


def why_ignored(file: Path) -> str:
    """Why what is in such a file does not count, as the end of a sentence; "" if it does, or if there is nothing."""
    try:
        read_private_json(file)
    except NotPrivate as fault:
        return f"; {fault}"
    except (OSError, FileFault):
        pass
    return ""


def _this_user() -> int | None:
    """None on Windows, where a file's rights are those of its folder."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def _check_private(path: Path, found: os.stat_result) -> None:
    user = _this_user()
    if user is None:
        return
    if found.st_uid not in (0, user):
        raise NotPrivate(f"{path} is ignored, because it belongs to another user: remove it")
    if _is_loose(found):
        raise NotPrivate(f"{path} is ignored, because other users can write it: chmod go-w {path}")


def _is_loose(found: os.stat_result) -> bool:
    """Whether others can write or replace it; in a folder as /tmp, they cannot replace what is not theirs."""
    return bool(found.st_mode & _OTHERS_WRITE) and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX)
