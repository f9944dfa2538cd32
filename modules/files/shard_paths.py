"""Paths of files in shards, `photos/00000.tar/000012.jpg`: what is before and after the shard's name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

ARCHIVES: Final = (".tar", ".zip")
ARROW: Final = ".arrow"
PARQUET: Final = ".parquet"
SHARD_SUFFIXES: Final = (*ARCHIVES, ARROW, PARQUET)
COMPRESSED_TARS: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
SHARD_OF_CACHE: Final = "cache-"  # what `datasets` keeps of its own computations beside a data set
_IN_SHARD: Final = re.compile(r"\.(?:tar|zip|arrow|parquet)(?=/)", re.IGNORECASE)


def is_shard(name: str) -> bool:
    """Whether a file of this name is one."""
    return name.lower().endswith(SHARD_SUFFIXES)


def is_archive(name: str) -> bool:
    """Whether a file of this name is one, and no table."""
    return name.lower().endswith(ARCHIVES)


def split_member(path: str) -> tuple[str, str] | None:
    """The shard that a file is in, and the name there; None for a file of its own. Whether it is there is not asked."""
    if os.sep != "/":
        path = path.replace(os.sep, "/")
    for match in _IN_SHARD.finditer(path):
        if os.path.isfile(path[: match.end()]):
            return path[: match.end()], path[match.end() + 1 :]
    return None


def lies_there(path: str | Path) -> bool:
    """Whether there is a file or link of this name, or a shard that had the file."""
    return os.path.lexists(path) or split_member(os.fspath(path)) is not None
