"""Checks that all machines train on the same images, with a cache folder that they share or with one each."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from modules.config import ConfigError, DataError
from modules.data.cache.table import cache_file_gone
from modules.data.index.index import Index
from modules.data.rng import UInt64Array
from modules.distributed import RankGroup, SharedFolderGroups
from modules.files import FileFault, decode_json, printable
from modules.machine import hostname
from modules.monitoring import Report

_SHOWN = 3

T = TypeVar("T")


class DifferentData(DataError):
    """Ranks do not see the same; each raises it."""


def report_unshared_cache(groups: SharedFolderGroups, ranks: RankGroup, report: Report) -> None:
    """Log that machines do not share the cache folder, because each of them then encodes every image."""
    hosts = ranks.gather("hosts", hostname())
    if groups.is_shared_by_all:
        return
    named = [f"{_names(group)} ({', '.join(sorted({hosts[rank] for rank in group}))})" for group in groups.groups]
    report.note(f"The cache folder is not shared: {' and '.join(named)} each prepare all images on their own disk.")


def check_same_index_file(file: Path, folders: Sequence[str], groups: SharedFolderGroups, ranks: RankGroup) -> None:
    """Raise ConfigError on all ranks if ranks that share a cache folder read their images from other folders.

    The index and the cache know an image by its path, so a rank with other `folders` would train on other images.
    """
    gathered = ranks.gather(
        "index file", json.dumps([file.name, hostname(), [printable(folder) for folder in folders]])
    )
    by_rank = [_sent(tuple[str, str, list[str]], text, rank) for rank, text in enumerate(gathered)]
    for group in groups.groups:
        for rank in group:
            (name, host, theirs), (first_name, first_host, firsts) = by_rank[rank], by_rank[group[0]]
            if name != first_name:
                pairs = [f"{one!r} and {other!r}" for one, other in zip(firsts, theirs, strict=False) if one != other]
                raise ConfigError(
                    f"cache_dir: {first_host} (rank {group[0]}) and {host} (rank {rank}) share it, but their concepts "
                    f"are in different folders: {pairs[0] if pairs else f'{firsts} and {theirs}'}.",
                    "Give all machines the same paths, for example by a symbolic link, or each its own cache_dir.",
                )


def check_same_view(index: Index, usable: NDArray[np.bool_], ranks: RankGroup) -> None:
    """Raise DifferentData on all ranks if their data differs in the cache folder that they share, or it is gone.

    `usable` [rows] are the rows of `index` that can be trained on. Network drives may show a machine old files for a
    while.
    """
    if not index.path.exists():
        raise cache_file_gone(index.path)
    digest = hashlib.sha256(usable.tobytes() + index.digest.encode())
    gathered = ranks.gather("view", json.dumps([digest.hexdigest(), hostname(), len(index)]))
    seen = [_sent(tuple[str, str, int], text, rank) for rank, text in enumerate(gathered)]
    other = next((rank for rank, each in enumerate(seen) if each[0] != seen[0][0]), None)
    if other is not None:
        raise DifferentData(
            f"cache_dir: {seen[0][1]} (rank 0) and {seen[other][1]} (rank {other}) share it, but read different data "
            f"from it: {seen[0][2]} and {seen[other][2]} images.",
            "Start again: a network drive may show changes a minute late. If it happens again, give each machine its "
            "own cache_dir.",
        )


def check_same_images(index: Index, hashes: UInt64Array, ranks: RankGroup) -> None:
    """Raise the same DifferentData on all ranks if two machines are about to train on different images.

    `hashes` is Cache.content_hashes(): uint64 [rows], one for each row of `index`.
    """
    digests = ranks.gather("pictures", hashlib.sha256(hashes.tobytes()).hexdigest())
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is None:
        return
    gathered = ranks.gather("rows", base64.b85encode(hashes.tobytes()).decode() if ranks.rank in (0, other) else "")
    theirs = _hashes(gathered[other if ranks.rank == 0 else 0], other if ranks.rank == 0 else 0)
    only_here = np.flatnonzero((hashes != 0) & ~np.isin(hashes, theirs)).tolist()
    paths = [f"{index.header.roots[index.concept[row]]}/{index.relative_path(row)}" for row in only_here[:_SHOWN]]
    names = [printable(path) for path in paths]
    differences = ranks.gather("differences", json.dumps([hostname(), len(only_here), names]))
    by_rank = [_sent(tuple[str, int, list[str]], text, rank) for rank, text in enumerate(differences)]
    sides = " and ".join(_side(*by_rank[rank]) for rank in (0, other) if by_rank[rank][1])
    raise DifferentData(
        f"concepts: {by_rank[0][0]} (rank 0) and {by_rank[other][0]} (rank {other}) have different images or captions: "
        f"{sides}.",
        "Copy the same files to every machine, or put them on a shared disk.",
    )


def _sent(kind: type[T], text: str, rank: int) -> T:
    """What a rank says of its data. Raises DataError if it cannot be that."""
    try:
        return TypeAdapter(kind).validate_python(decode_json(text))
    except (FileFault, ValidationError):
        raise DataError(f"What rank {rank} says of its images cannot be read: {printable(text, 80)!r}.") from None


def _hashes(text: str, rank: int) -> UInt64Array:
    try:
        return np.frombuffer(base64.b85decode(text), dtype=np.uint64)
    except ValueError:
        raise DataError(f"What rank {rank} says of its images cannot be read: {printable(text, 80)!r}.") from None


def _side(host: str, count: int, names: list[str]) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"{', '.join(names)}{more} on {host} {'differs' if count == 1 else 'differ'} from the other machine"


def _names(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
