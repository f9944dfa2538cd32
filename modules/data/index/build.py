"""Building the index: scan the folders, open only new and changed files, store the table."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modules.config import ConfigError, DataError, TandemError, TrainConfig
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.config.sections.data import DataSettings
from modules.data.index.buckets import bucket_images, split_by_frames, split_by_references
from modules.data.index.clips import clip_frames, moments
from modules.data.index.column_store import Column, StringColumn, write_columns
from modules.data.index.concept_rows import ConceptRows, index_concept
from modules.data.index.findings import Findings
from modules.data.index.index import Index, IndexHeader, ProgressCallback, index_path, load_index, no_progress
from modules.data.index.journal import Journal
from modules.data.index.scan import FolderScan, scan_concept
from modules.data.rng import UInt64Array, hash_uint64, to_unit_interval
from modules.facts import all_facts
from modules.files import remove_partial, write_fault
from modules.files.videos import VIDEO_SUFFIXES

_KEPT_INDEXES = 8  # of the starts of runs, and as many of those that replaced one while a run trained
_ABANDONED_S = 3600.0  # after which a partly written index is of no machine that still writes it
_NAMED_SUFFIXES = 20  # of files that are not images


def build_index(
    settings: TrainConfig,
    seed: int,
    size_step: int,
    cache_dir: Path,
    progress: ProgressCallback = no_progress,
    *,
    by_image: bool = True,
) -> Index:
    """Bring the stored index up to date and load it; `progress` counts the images of all concepts.

    Bucket sides are multiples of `size_step` pixels; `seed` chooses the validation split. `by_image`: see `Order`.
    Raises DataError if no image is left to train on, TandemError if `cache_dir` cannot be written.
    """
    path = index_path(settings, seed, size_step, cache_dir, by_image=by_image)
    previous = _previous_index(path)
    with Journal(cache_dir) as journal:
        columns = _index_columns(previous, settings, seed, size_step, progress, by_image=by_image, journal=journal)
        store_index(Index(path, *columns))
    return load_index(path)


def changed_index(
    current: Index, settings: TrainConfig, seed: int, size_step: int, progress: ProgressCallback = no_progress
) -> Index | None:
    """The index of the files as they are now, for `store_index`; None if they are those of `current`, whatever other
    runs have stored in its place. Raises as `build_index`.

    It is named after its content, because others may still map `current`, or have found other changes.
    """
    path = index_path(settings, seed, size_step, current.path.parent)
    index = Index(path, *_index_columns(current, settings, seed, size_step, progress))
    if index.digest == current.digest:
        return None
    index.path = path.with_stem(f"{path.stem}-{index.digest[:16]}")
    return index


def store_index(index: Index) -> None:
    """Write the file of an index, and remove those that were not for longest, and what programs that were killed left.

    Raises TandemError if it cannot be."""
    path, kept = index.path, Counter[bool]()
    remove_partial(path.parent, only="", unchanged_s=_ABANDONED_S)
    try:
        write_columns(path, index.stored_columns, index.header.dump())
        for old in _stored_indexes(path.parent):
            is_replacement = old.stem.count("-") > 1
            kept[is_replacement] += 1
            if kept[is_replacement] > _KEPT_INDEXES:
                old.unlink(missing_ok=True)
    except OSError as error:
        kind = TandemError if error.errno == errno.ENOSPC else ConfigError
        raise kind(
            f"cache_dir: the index cannot be written to {str(path.parent)!r}: {write_fault(error, path)}.",
            "Choose a writable folder on a disk with free space.",
        ) from error


def read_index(settings: TrainConfig, seed: int, size_step: int, cache_dir: Path) -> Index:
    """As `build_index`, but nothing is written."""
    path = index_path(settings, seed, size_step, cache_dir)
    return Index(path, *_index_columns(_previous_index(path), settings, seed, size_step, no_progress))


def _index_columns(
    previous: Index | None,
    settings: TrainConfig,
    seed: int,
    size_step: int,
    progress: ProgressCallback,
    *,
    by_image: bool = True,
    journal: Journal | None = None,
) -> tuple[dict[str, Column], IndexHeader]:
    check_concepts(settings)
    step, with_masks = settings.clip_step, settings.masked_training
    scans = {n: scan_concept(c, with_masks, step is not None) for n, c in enumerate(settings.concepts) if c.enabled}
    total, concepts = sum(len(scan.paths) for scan in scans.values()), dict[int, ConceptRows]()
    for n, scan in scans.items():
        before = sum(len(scans[other].paths) for other in concepts)
        counted = partial(_count_all, progress, before, total)
        concepts[n] = index_concept(n, scan, settings.concepts[n], previous, counted, settings.most_references, journal)
    joined = _joined(list(concepts.values()))
    if not joined["transparency"].any():
        del joined["transparency"]  # see Index
    number, width, height = (joined[name].astype(np.int32) for name in ("concept", "width", "height"))
    references = [each for rows in concepts.values() for each in rows.references]
    sized = bucket_images(settings, size_step, number, width, height)
    in_time = split_by_frames(trained_frames(settings, joined), *sized)
    buckets, bucket = split_by_references(settings, size_step, number, references, *in_time)
    columns = _with_settings(joined, settings, seed, by_image=by_image) | {"bucket": bucket}
    header = IndexHeader(
        roots=tuple(scans[n].root if n in scans else "" for n in range(len(settings.concepts))),
        origins=tuple(concepts[n].origin if n in concepts else "" for n in range(len(settings.concepts))),
        buckets=buckets,
        problems=tuple(each for rows in concepts.values() for each in [*rows.problems, *rows.caption_faults]),
        files_seen=sum(scan.files_seen for scan in scans.values()),
        other_files=tuple(
            dict(scans[n].other_files.most_common(_NAMED_SUFFIXES)) if n in scans else {}
            for n in range(len(settings.concepts))
        ),
        findings=tuple(concepts[n].findings if n in concepts else Findings() for n in range(len(settings.concepts))),
        clip_rate=settings.clip_rate,
        most_frames=1 if step is None else settings.frames,
    )
    _refuse_empty(columns, header, list(scans.values()), takes_videos=step is not None)
    return columns, header


def trained_frames(settings: TrainConfig, columns: Mapping[str, Column]) -> NDArray[np.int32]:
    """int32 [images]: frames that each is trained with, 1 of stills, from the columns frames and fps."""
    fps = columns["fps"].astype(np.float64)
    frames = np.ones(len(fps), dtype=np.int32)
    if (step := settings.clip_step) is None:
        return frames
    for row in np.flatnonzero(fps).tolist():
        found = moments(int(columns["frames"][row]), float(fps[row]), settings.clip_rate)
        frames[row] = clip_frames(found, settings.frames, step)
    return frames


def in_validation_split(
    path_hash: UInt64Array, concept: NDArray[np.int32], seed: int, share: float, *, by_image: bool = True
) -> NDArray[np.bool_]:
    """bool [images]: held out by `validation_split`; `path_hash` and `concept` are columns [images] of the index.

    Of each concept round(share x images), those with the lowest hashes of seed and path. Without `by_image`, as
    up to 0.2.0, each image whose hash is below the share, however many that are.
    """
    hashes = hash_uint64(path_hash, seed, 0x5EED)
    if not by_image:
        return to_unit_interval(hashes) < share
    held_out = np.zeros(len(hashes), dtype=np.bool_)
    for number in np.unique(concept).tolist():
        members = np.flatnonzero(concept == number)
        held_out[members[np.argsort(hashes[members], kind="stable")[: round(share * len(members))]]] = True
    return held_out


def newest_index(cache_dir: Path) -> Index | None:
    """The index that was stored last; None if there is none that can be read."""
    stored = _stored_indexes(cache_dir)
    try:
        return load_index(stored[0]) if stored else None
    except DataError:
        return None


def check_concepts(settings: DataSettings) -> None:
    """Raises DataError unless some concept is switched on."""
    if not any(concept.enabled for concept in settings.concepts):
        raise DataError("concepts: there is no concept that is switched on.", "Add a folder with images.")


def _count_all(progress: ProgressCallback, before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


def _joined(concepts: list[ConceptRows]) -> dict[str, Column]:
    """The columns of all concepts, one after the other."""
    columns = {name: np.concatenate([rows.columns[name] for rows in concepts]) for name in concepts[0].columns}
    numbers = [np.full(len(rows.paths), rows.number, dtype=np.int32) for rows in concepts]
    columns["concept"] = np.concatenate(numbers)
    for name, texts in (
        ("path", [path for rows in concepts for path in rows.paths]),
        ("caption", [caption for rows in concepts for caption in rows.captions]),
        ("mask", [mask for rows in concepts for mask in rows.masks]),
        ("reference", [each for rows in concepts for each in rows.references]),
    ):
        packed = StringColumn.pack(texts)
        columns[f"{name}_blob"], columns[f"{name}_starts"] = packed.blob, packed.starts
    return columns


def _with_settings(
    columns: dict[str, Column], settings: DataSettings, seed: int, *, by_image: bool
) -> dict[str, Column]:
    """Add the column validation, true for every image not trained on."""
    held_out = np.array([concept.kind != "train" for concept in settings.concepts])
    concept, path_hash = columns["concept"].astype(np.int32), columns["path_hash"].astype(np.uint64)
    in_split = in_validation_split(path_hash, concept, seed, settings.validation_split, by_image=by_image)
    return columns | {"validation": held_out[concept] | in_split}


def _previous_index(path: Path) -> Index | None:
    """The index to reuse sizes and captions from: that of these settings, else the newest."""
    if not path.exists():
        return newest_index(path.parent)
    try:
        return load_index(path)
    except DataError:
        return None


def _stored_indexes(cache_dir: Path) -> list[Path]:
    """All indexes in the folder, newest first."""
    by_date = []
    for path in cache_dir.glob("index-*.safetensors"):
        try:
            by_date.append((path.stat().st_mtime_ns, path))
        except OSError:  # another run may delete old indexes at the same time
            continue
    return [path for _, path in sorted(by_date, reverse=True)]


def _refuse_empty(
    columns: dict[str, Column], header: IndexHeader, scans: list[FolderScan], *, takes_videos: bool
) -> None:
    validation = columns["validation"]
    if len(validation) and not validation.all():
        return
    folders = ", ".join(repr(scan.root) for scan in scans)
    if len(validation):
        raise DataError(
            f"All {len(validation):,} images in {folders} are held out for validation; none is left to train on.",
            "Add a concept of kind train, or lower validation_split.",
        )
    reasons = _reasons(header, scans)
    read = ", ".join(sorted(IMAGE_SUFFIXES | VIDEO_SUFFIXES if takes_videos else IMAGE_SUFFIXES))
    only = (
        ""
        if takes_videos or not any(_has_videos(scan) for scan in scans)
        else (
            " This family trains on images and passes videos over; these train on videos: "
            f"{', '.join(name for name, facts in all_facts().items() if facts.clips is not None)}."
        )
    )
    raise DataError(
        f"No usable image in {folders}: {header.files_seen:,} files seen{reasons}.", f"Tandem reads {read} files.{only}"
    )


def _has_videos(scan: FolderScan) -> bool:
    return not VIDEO_SUFFIXES.isdisjoint(scan.other_files)


def _reasons(header: IndexHeader, scans: list[FolderScan]) -> str:
    """Why files were skipped, with the count of each kind: " (3 x .txt; 2 x skipped: ...)"."""
    suffixes: Counter[str] = Counter()
    for scan in scans:
        suffixes += scan.other_files
    kinds = Counter(problem.what for problem in header.problems)
    reasons = [f"{count} x {suffix or 'files without suffix'}" for suffix, count in suffixes.most_common(4)]
    reasons += [f"{count} x {what}" for what, count in kinds.most_common(4)]
    masks = sum(scan.masks for scan in scans)
    reasons += [f"{masks} x masks"] if masks else []
    return f" ({'; '.join(reasons)})" if reasons else ""
