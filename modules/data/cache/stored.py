"""What a cache folder holds, for whoever keeps it small: its shards, when each was last used, and removing them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError

from modules.config import ConfigError
from modules.data.cache.manifest import MANIFEST_NAME, ManifestLine, read_lines
from modules.files import FileFault, file_size, is_link, open_for_writing, replacing


@dataclass(frozen=True)
class StoredShard:
    """A shard that a manifest lists."""

    path: Path
    size: int  # bytes
    entries: int  # images, or crops and mirrored images of them, and captions
    used: float  # seconds since 1970: when it was written, or a run last started with it
    line: ManifestLine


def stored_shards(cache_dir: Path) -> list[StoredShard]:
    """The shards of all ranks, the least recently used first; without those that are gone or have another size.

    Raises ConfigError if `cache_dir` is no folder.
    """
    found, now = [], time.time()
    for folder in _rank_folders(cache_dir):
        for line in read_lines(folder):
            path = folder / line.shard
            with suppress(OSError, FileFault):
                if line.shard and file_size(path) == line.shard_bytes:
                    used = min(path.stat().st_mtime, now)  # a foreign folder's may be after the end of the calendar
                    found.append(StoredShard(path, line.shard_bytes, len(line.keys), used, line))
    return sorted(found, key=lambda shard: shard.used)


def mark_used(shards: Collection[Path]) -> bool:
    """Remember that a run starts with these shards, as far as this user may; returns whether all are marked."""
    is_marked = True
    for path in shards:
        try:
            os.utime(path)
        except FileNotFoundError:  # which whoever reads it tells
            continue
        except OSError:
            is_marked = False
    return is_marked


def find_damage(shard: StoredShard) -> str:
    """Read all of a shard; why it cannot be used, or empty."""
    from modules.data.cache.reader import OpenShard  # torch takes seconds to import
    from modules.data.cache.shards import checksum

    try:
        opened = OpenShard(shard.path)
        for position, expected in enumerate(shard.line.checksums):
            if checksum(opened.read(position)) != expected:
                return "checksum mismatch"
    except (OSError, FileFault, SafetensorError, KeyError, ValueError) as error:
        return str(error)
    return ""


def outdated(shards: Sequence[StoredShard], limit: int | None, days: float | None) -> list[StoredShard]:
    """Of `shards`, in their order, those not used for `days` and so many that `limit` bytes are left."""
    oldest = time.time() - days * 86400 if days is not None else 0.0
    excess = sum(shard.size for shard in shards) - limit if limit is not None else 0
    found = []
    for shard in shards:
        if shard.used >= oldest and excess <= 0:
            break
        found.append(shard)
        excess -= shard.size
    return found


def remove_shards(shards: Sequence[StoredShard]) -> None:
    """Remove shards of one cache folder; what is known of its image files stays.

    A manifest is rewritten before its shards go, so that whenever this is killed nothing is listed that is not there.
    Raises TandemError while a run writes to one of the folders, OSError if something cannot be written or removed.
    """
    from modules.data.cache.shards import lock_folder, sync_folder  # torch takes seconds to import

    for folder in sorted({shard.path.parent for shard in shards}):
        removed = {shard.path.name for shard in shards if shard.path.parent == folder}
        lock = lock_folder(folder, lambda text: None)
        try:
            lines = [
                replace(line, shard="", shard_bytes=0, keys=[], checksums=[]) if line.shard in removed else line
                for line in read_lines(folder)
            ]
            with replacing(folder / MANIFEST_NAME) as temporary, os.fdopen(open_for_writing(temporary), "wb") as file:
                file.writelines(line.dump().encode() + b"\n" for line in lines if line.has_content())
                file.flush()
                os.fsync(file.fileno())
            sync_folder(folder)
            for name in sorted(removed):
                (folder / name).unlink(missing_ok=True)
        finally:
            os.close(lock)


def _rank_folders(cache_dir: Path) -> list[Path]:
    if not cache_dir.is_dir():
        raise ConfigError(f"{str(cache_dir)!r} is no folder", "Give the cache folder of a config (cache_dir)")
    return [each for each in sorted(cache_dir.glob("rank-*")) if each.is_dir() and not is_link(each)]
