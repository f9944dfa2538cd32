"""Machines without a shared cache folder: each prepares all pictures, and all must have prepared the same ones."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

import numpy as np

from modules.config import DataError
from modules.data.hashing import Words
from modules.data.index import Index
from modules.distributed import Neighbours
from modules.distributed.neighbours import Gather
from modules.machine import hostname
from modules.monitoring import Report

_SHOWN = 3


def tell_of_folders(near: Neighbours, hosts: Sequence[str], report: Report) -> None:
    """Say so where machines do not share the cache folder, because each then encodes every picture."""
    if near.is_shared:
        return
    groups = [f"{_names(group)} ({', '.join(sorted({hosts[rank] for rank in group}))})" for group in near.groups]
    report.note(f"The cache folder is not shared: {' and '.join(groups)} each prepare all pictures on their own disk.")


def check_same_pictures(index: Index, words: Words, near: Neighbours, gather: Gather) -> None:
    """Raise DataError, alike on all ranks, where two machines are about to train on different pictures.

    `words` [rows] are those of Cache.words: one per row of `index`.
    """
    digests = gather("pictures", hashlib.sha256(words.tobytes()).hexdigest())
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is None:
        return
    everyone = gather("rows", base64.b85encode(words.tobytes()).decode() if near.rank in (0, other) else "")
    opposite = everyone[other if near.rank == 0 else 0]
    there = np.frombuffer(base64.b85decode(opposite), dtype=np.uint64)
    alone = np.flatnonzero((words != 0) & ~np.isin(words, there)).tolist()
    names = [f"{index.facts.roots[index.concept[row]]}/{index.relative_path(row)}" for row in alone[:_SHOWN]]
    told = [json.loads(text) for text in gather("differences", json.dumps([hostname(), len(alone), names]))]
    sides = " and ".join(_side(*told[rank]) for rank in (0, other) if told[rank][1])
    raise DataError(
        f"concepts: {told[0][0]} (rank 0) and {told[other][0]} (rank {other}) have different pictures or captions: "
        f"{sides}.",
        "Copy the same files to every machine, or put them on a disk that all of them see.",
    )


def _side(host: str, count: int, names: list[str]) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"{', '.join(names)}{more} on {host} {'is' if count == 1 else 'are'} not the same on the other"


def _names(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
