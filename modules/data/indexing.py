"""Building the index: scan the folders, open only what is new or changed, store the table."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modules.config import ConfigError, DataError, TandemError, TrainConfig
from modules.data.buckets import assign_buckets, make_buckets
from modules.data.concepts import FolderScan, scan_concept
from modules.data.hashing import Words, fractions, hash_words
from modules.data.index import Facts, Index, ProgressCallback, index_path, load_index, silent
from modules.data.index_part import IndexPart, index_concept
from modules.data.table import Column, Texts, write_table

_KEPT_INDEXES = 8


def build_index(config: TrainConfig, size_step: int, cache_dir: Path, progress: ProgressCallback = silent) -> Index:
    """Bring the stored index up to date and load it; `progress` counts the pictures opened, over all
    concepts.

    Raises DataError where no picture is left to train on, TandemError where `cache_dir` cannot be written.
    """
    if not any(concept.enabled for concept in config.concepts):
        raise DataError("concepts: there is no concept that is switched on.", "Add a folder with pictures.")
    path = index_path(config, size_step, cache_dir)
    scans = {n: scan_concept(c, config.masked_training) for n, c in enumerate(config.concepts) if c.enabled}
    previous = _previous_index(path)
    parts = [index_concept(n, scan, config.concepts[n], previous, progress) for n, scan in scans.items()]
    columns = _with_settings(_joined(parts), config, size_step)
    problems = [problem for part in parts for problem in part.problems]
    by_number = {part.number: part for part in parts}
    facts = Facts(
        roots=tuple(scans[n].root if n in scans else "" for n in range(len(config.concepts))),
        origins=tuple(by_number[n].origin if n in scans else "" for n in range(len(config.concepts))),
        buckets=make_buckets(config.resolution, size_step, config.aspect_ratio_bucketing),
        problems=tuple(problems),
        files_seen=sum(scan.files_seen for scan in scans.values()),
    )
    _refuse_empty(columns, facts, list(scans.values()))
    _store(path, columns, facts)
    return load_index(path)


def _joined(parts: list[IndexPart]) -> dict[str, Column]:
    """The columns of all concepts, one after the other."""
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    numbers = [np.full(len(part.paths), part.number, dtype=np.int32) for part in parts]
    columns["concept"] = np.concatenate(numbers)
    for name, texts in (
        ("path", [path for part in parts for path in part.paths]),
        ("caption", [caption for part in parts for caption in part.captions]),
    ):
        packed = Texts.pack(texts)
        columns[f"{name}_blob"], columns[f"{name}_starts"] = packed.blob, packed.starts
    return columns


def _with_settings(columns: dict[str, Column], config: TrainConfig, size_step: int) -> dict[str, Column]:
    """Add the columns that follow from settings: bucket, and validation for all that is not learned from."""
    buckets = make_buckets(config.resolution, size_step, config.aspect_ratio_bucketing)
    bucket = assign_buckets(buckets, columns["width"].astype(np.int32), columns["height"].astype(np.int32))
    set_aside = np.array([concept.kind != "train" for concept in config.concepts])
    chosen = in_validation_split(columns["path_hash"].astype(np.uint64), config.seed, config.validation_split)
    return columns | {"bucket": bucket, "validation": set_aside[columns["concept"].astype(np.int64)] | chosen}


def in_validation_split(path_hash: Words, seed: int, share: float) -> NDArray[np.bool_]:
    """Which pictures are set aside: a pure function of seed and relative path, so new files never move old
    ones."""
    return fractions(hash_words(path_hash, seed, 0x5EED)) < share


def _previous_index(path: Path) -> Index | None:
    """What to reuse headers and captions from: the index of these settings, else the newest of any."""
    candidates = [path] if path.exists() else _stored_indexes(path.parent)[:1]
    try:
        return load_index(candidates[0]) if candidates else None
    except DataError:
        return None


def _stored_indexes(cache_dir: Path) -> list[Path]:
    """All indexes in the folder, newest first."""
    dated = []
    for path in cache_dir.glob("index-*.safetensors"):
        try:
            dated.append((path.stat().st_mtime_ns, path))
        except OSError:  # another run may tidy up at the same time
            continue
    return [path for _, path in sorted(dated, reverse=True)]


def _store(path: Path, columns: dict[str, Column], facts: Facts) -> None:
    try:
        write_table(path, columns, facts.dump())
        for old in _stored_indexes(path.parent)[_KEPT_INDEXES:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        kind = TandemError if error.errno == errno.ENOSPC else ConfigError
        raise kind(
            f"cache_dir: the index cannot be written to {str(path.parent)!r}: {error.strerror or error}.",
            "Choose a folder you may write to, with space left.",
        ) from error


def _refuse_empty(columns: dict[str, Column], facts: Facts, scans: list[FolderScan]) -> None:
    validation = columns["validation"]
    if len(validation) and not validation.all():
        return
    folders = ", ".join(repr(scan.root) for scan in scans)
    if len(validation):
        raise DataError(
            f"All {len(validation)} pictures in {folders} are set aside for validation, none is left.",
            "Add a concept of kind train, or lower validation_split.",
        )
    reasons = _reasons(facts, scans)
    raise DataError(
        f"No usable picture in {folders}: {facts.files_seen} files seen{reasons}.",
        "Tandem reads .png, .jpg, .jpeg, .webp and .bmp files.",
    )


def _reasons(facts: Facts, scans: list[FolderScan]) -> str:
    """Why files were passed over, each kind with its count: ", of which 3 are .txt files, 2 ..."."""
    suffixes: Counter[str] = Counter()
    for scan in scans:
        suffixes += scan.other_files
    kinds = Counter(problem.what for problem in facts.problems)
    told = [f"{count} x {suffix or 'files without suffix'}" for suffix, count in suffixes.most_common(4)]
    told += [f"{count} x {what}" for what, count in kinds.most_common(4)]
    hidden = sum(scan.masks for scan in scans)
    told += [f"{hidden} x masks"] if hidden else []
    return f" ({'; '.join(told)})" if told else ""
