"""Scanning a concept folder: its images, with size and mtime of each image, caption file and mask. Opens no file."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept, DataError
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.data.index.images import UNSUPPORTED_SUFFIXES
from modules.data.index.links import describe_foreign_link, is_foreign_link
from modules.data.index.problems import Problem
from modules.files import whole_path

METADATA_NAMES = ("metadata.csv", "metadata.jsonl")  # if both name an image, the later one wins
_NEIGHBOURS = 1000  # images that a metadata file may lie beside, if it is a link
Stamp: TypeAlias = tuple[int, int]  # size in bytes, mtime in ns
NO_FILE: Stamp = (-1, -1)


@dataclass
class FolderScan:
    """The images of one concept, sorted by relative path (bytes as on disk, `/` between folders)."""

    root: str
    paths: list[bytes] = field(default_factory=list)
    # `stamps`, flat: as Python objects, a million images would be six million integers.
    flat_stamps: array[int] = field(default_factory=lambda: array("q"))
    metadata: list[tuple[str, Stamp]] = field(default_factory=list)  # relative path, stamp
    problems: list[Problem] = field(default_factory=list)
    other_files: Counter[str] = field(default_factory=Counter)  # suffix -> number of files that are not images
    masks: int = 0

    @property
    def stamps(self) -> NDArray[np.int64]:
        """int64 [images, 3, 2]: size (bytes) and mtime (ns) of image, caption file and mask; -1 if there is none."""
        return np.array(self.flat_stamps, dtype=np.int64).reshape(-1, 3, 2)

    def sort(self) -> None:
        """Bring images into path order, and metadata files from the top folder down."""
        order = sorted(range(len(self.paths)), key=self.paths.__getitem__)
        self.flat_stamps = array("q", self.stamps[order].tobytes())
        self.paths = [self.paths[row] for row in order]
        self.metadata.sort(key=lambda found: (found[0].count("/"), found[0]))

    @property
    def files_seen(self) -> int:
        """Number of files of any kind in the folder."""
        return len(self.paths) + sum(self.other_files.values()) + self.masks


def concept_root(concept: Concept) -> str:
    """The concept's folder as an absolute path."""
    return str(whole_path(os.path.expanduser(concept.path)))


def scan_concept(concept: Concept, with_masks: bool) -> FolderScan:
    """List the images below the concept's folder; hidden files and folders are ignored, links are followed once.

    Raises DataError if the folder does not exist or cannot be listed.
    """
    scan = FolderScan(concept_root(concept))
    try:
        pending = [(scan.root, "", os.stat(scan.root))]
        with os.scandir(scan.root):
            pass
    except NotADirectoryError as error:
        raise DataError(f"concepts: {concept.path!r} is a file; give the folder that contains the images.") from error
    except FileNotFoundError as error:
        place = f" ({scan.root})" if scan.root != concept.path else ""
        raise DataError(
            f"concepts: the folder {concept.path!r} does not exist{place}.",
            "Correct the path or switch this concept off.",
        ) from error
    except OSError as error:
        raise DataError(f"concepts: the folder {scan.root!r} cannot be opened: {error.strerror}.") from error
    visited = set()
    while pending:
        folder, prefix, status = pending.pop()
        # A folder is scanned once however many links lead to it: circular links end, and no image counts twice.
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        below = _scan_folder(scan, folder, prefix, concept, with_masks)
        if concept.include_subfolders:
            pending.extend(reversed(below))
    scan.sort()
    _refuse_foreign_metadata(scan)
    return scan


def mask_path(image_path: str, concept: Concept) -> str:
    """The path of the mask that belongs to an image."""
    return os.path.splitext(image_path)[0] + concept.mask_suffix


def _scan_folder(
    scan: FolderScan, folder: str, prefix: str, concept: Concept, with_masks: bool
) -> list[tuple[str, str, os.stat_result]]:
    """Add the files of one folder to `scan`; returns its subfolders as (path, prefix of relative paths, status)."""
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry for entry in entries if not entry.name.startswith(".")}
    except OSError as error:
        scan.problems.append(Problem(folder, f"folder skipped: {error.strerror}"))
        return []
    subfolders: list[tuple[str, str, os.stat_result]] = []
    extensions, mask_suffix = concept.caption_extensions, concept.mask_suffix
    for name in sorted(found):
        stem, dot, suffix = name.rpartition(".")
        suffix = dot + suffix.lower() if stem else ""
        entry = found[name]
        if suffix in IMAGE_SUFFIXES and not name.endswith(mask_suffix):
            caption = next((found[stem + each] for each in extensions if stem + each in found), None)
            mask = found.get(stem + mask_suffix)
            _add_image(scan, entry, prefix + name, caption, mask if with_masks else None)
        elif _is_folder(entry):
            _add_folder(scan, entry, prefix + name, subfolders)
        elif name in METADATA_NAMES:
            scan.metadata.append((prefix + name, _stamp(entry)))
            scan.other_files[suffix] += 1
        elif name.endswith(mask_suffix):
            scan.masks += 1
        else:
            scan.other_files[suffix] += 1
            if suffix in UNSUPPORTED_SUFFIXES:
                what = f"skipped: {suffix} images are not supported; convert this one to PNG, JPEG or WebP"
                scan.problems.append(Problem(entry.path, what))
    return subfolders


def _refuse_foreign_metadata(scan: FolderScan) -> None:
    images = [os.path.join(scan.root, os.fsdecode(path)) for path in scan.paths[:_NEIGHBOURS]]
    kept = []
    for relative, stamp in scan.metadata:
        path = os.path.join(scan.root, relative)
        if is_foreign_link(path, scan.root, images):
            scan.problems.append(Problem(path, f"not read: it {describe_foreign_link(path)}"))
        else:
            kept.append((relative, stamp))
    scan.metadata = kept


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _add_image(
    scan: FolderScan,
    entry: os.DirEntry[str],
    relative: str,
    caption: os.DirEntry[str] | None,
    mask: os.DirEntry[str] | None,
) -> None:
    try:
        if not entry.is_file():
            # A directory may be called "holiday.png"; opening a named pipe would block forever.
            what = "skipped: not a file, or a broken link"
            scan.problems.append(Problem(entry.path, what))
            scan.other_files["not a file"] += 1
            return
        status = entry.stat()
    except OSError as error:
        scan.problems.append(Problem(entry.path, f"skipped: {error.strerror}"))
        scan.other_files["unreadable"] += 1
        return
    if mask is not None and is_foreign_link(mask.path, scan.root, [entry.path]):
        what = f"skipped: its mask {mask.name} {describe_foreign_link(mask.path)}"
        scan.problems.append(Problem(entry.path, what))
        scan.other_files["with a foreign mask"] += 1
        return
    scan.paths.append(os.fsencode(relative))
    scan.flat_stamps.extend((status.st_size, status.st_mtime_ns))
    scan.flat_stamps.extend(_stamp(caption) if caption else NO_FILE)
    scan.flat_stamps.extend(_stamp(mask) if mask else NO_FILE)


def _add_folder(
    scan: FolderScan,
    entry: os.DirEntry[str],
    relative: str,
    subfolders: list[tuple[str, str, os.stat_result]],
) -> None:
    try:
        # DirEntry.stat() reports inode 0 on Windows; os.stat() does not.
        subfolders.append((entry.path, relative + "/", os.stat(entry.path)))
    except OSError as error:
        scan.problems.append(Problem(entry.path, f"folder skipped: {error.strerror}"))


def _stamp(entry: os.DirEntry[str]) -> Stamp:
    try:
        status = entry.stat()
    except OSError:
        return NO_FILE
    return status.st_size, status.st_mtime_ns
