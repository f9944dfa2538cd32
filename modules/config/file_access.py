"""Who may read what Tandem writes, and whose files it reads unasked: this user's alone, but for TANDEM_UMASK."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modules import ROOT
from modules.config.errors import ConfigError

VARIABLE: Final = "TANDEM_UMASK"
_NOBODY: Final = 65534
_PRIVATE: Final = 0o077  # nothing for the group and others
_OCTAL: Final = re.compile(r"0?[0-7]{3}")


def set_file_access(environ: Mapping[str, str] = os.environ) -> None:
    """Give the files and folders that this process and its children create no rights for others.

    Called once by each program. TANDEM_UMASK=007 lets the group in, for a team that shares runs and caches. Rights of
    what exists stay as they are. Raises ConfigError for a value that is no umask or lets others write.
    """
    text = environ.get(VARIABLE, "").strip()
    umask = _umask_in(text)
    if _OCTAL.fullmatch(text) and not umask & stat.S_IWOTH:
        raise ConfigError(
            f"{VARIABLE} is {text!r}, which would let every user of this computer change your runs",
            "Use 007 to share them with your group, or 002 to let others read them, too",
        )
    if text and (not _OCTAL.fullmatch(text) or umask & stat.S_IRWXU):
        raise ConfigError(
            f"{VARIABLE} is {text!r}; it must be a umask that leaves you all rights, such as 077, 027 or 007",
            "Unset it for files that only you can read; 007 shares them with your group",
        )
    os.umask(umask)


class OtherUsersFile(ConfigError):
    """A file that nobody has asked for belongs to another user."""


def other_owner(file: Path) -> str:
    """The user that a file belongs to, if it is not to be read unasked; "" for one's own, without a file, on Windows.

    Root's files are read, and those of the user that Tandem's own belong to: who could write these needs no others. So
    are those of the group if TANDEM_UMASK lets it write what this user has, and for root those of nobody, to whom a
    network drive gives what root writes (exports(5), root_squash).
    """
    if not hasattr(os, "geteuid"):
        return ""
    try:
        found = file.stat()
        if found.st_uid in _own_users() or (_shares_with_group() and found.st_gid in (os.getegid(), *os.getgroups())):
            return ""
        return file.owner()
    except KeyError:  # a number without a name
        return str(found.st_uid)
    except (OSError, ValueError):
        return ""  # reading it says what is wrong


def require_own(file: Path, advice: str) -> None:
    """Raise OtherUsersFile if a file that nobody has asked for is another user's."""
    if owner := other_owner(file):
        raise OtherUsersFile(f"{file} belongs to another user of this computer, {owner}, so it is not used", advice)


def _own_users() -> set[int]:
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return {0, user, ROOT.stat().st_uid, *([_NOBODY] if user == 0 else [])}


def _shares_with_group() -> bool:
    return not _umask_in(os.environ.get(VARIABLE, "").strip()) & stat.S_IWGRP


def _umask_in(text: str) -> int:
    return int(text, 8) if _OCTAL.fullmatch(text) else _PRIVATE


def umask_of(folder: Path) -> int:
    """The umask for a program that writes into another program's `folder`: what is there decides; -1 for ours."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return -1
    return ~mode & _PRIVATE if os.name == "posix" else -1


def mode_beside(file: Path) -> int:
    """The permissions of a file that is written into a folder of somebody's own, such as a caption beside its image.

    Those that it has; a new one gets what its folder lets others read. 0 where nothing is known: ours are right then.
    """
    try:
        return file.stat().st_mode & 0o777
    except OSError:
        umask = umask_of(file.parent)
    return 0 if umask < 0 else 0o664 & ~umask
