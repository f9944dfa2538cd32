"""Files that are only read: those in shards, and those of copies of addresses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from modules.files.addresses import is_in_copy
from modules.files.shard_paths import split_member


def check_changeable(path: str | Path) -> None:
    """Raises OSError for a file in a shard, or in the copy of an address, which the next start would undo."""
    text = os.fspath(path)
    if found := split_member(text):
        name = os.path.basename(found[0])
        what = f"it is in {name}, and archives and tables of images are only read: unpack it into a folder"
        raise OSError(errno.EROFS, what, text)
    if is_in_copy(os.path.dirname(text)):
        what = "it is in the copy of an address, and the next start would undo it: copy it to your own folder"
        raise OSError(errno.EROFS, what, text)
