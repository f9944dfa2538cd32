"""The rows of one concept: reused from the previous index, and read from the headers of new and changed files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept
from modules.config.captions import CaptionState
from modules.data.index.captions import Captions, FoundCaption, pack_captions
from modules.data.index.column_store import Column
from modules.data.index.findings import CaptionFindings, Findings
from modules.data.index.images import (
    IMAGE_ERRORS,
    describe_image_error,
    read_image_size,
    read_transparency,
    read_video,
    suppress_pillow_warnings,
)
from modules.data.index.index import OPAQUE, TRANSPARENT, Index, ProgressCallback, no_progress
from modules.data.index.journal import Journal
from modules.data.index.problems import Problem
from modules.data.index.references import (
    ReferenceFile,
    ReferenceFolder,
    pack_references,
    reference_roots,
    references_of,
)
from modules.data.index.scan import NO_FILE, FolderScan
from modules.data.rng import hash_bytes
from modules.files import printable
from modules.files.videos import ANIMATION_SUFFIXES, VIDEO_SUFFIXES

RowIndices: TypeAlias = NDArray[np.int64]
Result = TypeVar("Result")

_THREADS = 4  # on a network drive the time goes into waiting, not the CPU
_CHUNK = 32  # files per task of a thread: few, so that the threads read the same rows of a table together
_MAX_ASPECT_DIFFERENCE = 0.01  # relative, of mask and image


@dataclass
class ConceptRows:
    """The columns of one concept [rows], and what belongs to them."""

    number: int  # position in config.concepts
    columns: dict[str, Column]
    paths: list[bytes]
    captions: list[bytes]  # from `pack_captions`
    masks: list[bytes]  # relative paths of those that are not NAME + mask_suffix, the image's own too; else empty
    references: list[bytes]  # from `pack_references`
    origin: str  # Captions.origin
    problems: list[Problem]
    caption_faults: list[Problem]  # of the images whose state is CaptionState.UNREADABLE
    findings: Findings


def index_concept(
    number: int,
    scan: FolderScan,
    concept: Concept,
    previous: Index | None,
    progress: ProgressCallback,
    most_references: int = 0,
    journal: Journal | None = None,
) -> ConceptRows:
    """Table rows for the scanned images; unusable files become problems instead of rows, as do images with more than
    `most_references`."""
    previous_rows = _PreviousRows.of(previous, scan.root, number)
    return _RowBuilder(scan, concept, previous_rows, most_references, journal).build(number, progress)


def usable_images(
    number: int, scan: FolderScan, concept: Concept, previous: Index | None, most_opened: int, most_references: int
) -> NDArray[np.bool_]:
    """bool [scanned images]: which of them `index_concept` would keep; no captions are read.

    If more than `most_opened` files are not in the `previous` index, none is opened, and all of them count as usable.
    """
    previous_rows = _PreviousRows.of(previous, scan.root, number)
    return _RowBuilder(scan, concept, previous_rows, most_references).find_usable(most_opened)


class _PreviousRows:
    """One concept's rows of the previous index, found by relative path."""

    def __init__(self, index: Index | None, origin: str, findings: Findings, rows: dict[bytes, int]) -> None:
        self.index, self.origin, self.findings, self._rows = index, origin, findings, rows

    def __len__(self) -> int:
        return len(self._rows)

    @classmethod
    def of(cls, index: Index | None, root: str, number: int) -> _PreviousRows:
        if index is None or root not in index.header.roots:
            return cls(None, "", Findings(), {})
        roots = index.header.roots
        # Two concepts may share a folder; then the same position in the list is the same concept.
        number = number if roots[number : number + 1] == (root,) else roots.index(root)
        first, last = np.searchsorted(index.concept, [number, number + 1]).tolist()
        paths = index.paths.unpack(first, last)
        findings = index.header.findings[number] if index.header.findings else Findings()
        return cls(index, index.header.origins[number], findings, dict(zip(paths, range(first, last), strict=True)))

    def reference_sizes(self) -> dict[tuple[str, int, int], tuple[int, int]]:
        """(width, height) of the references of these rows by path, size and mtime."""
        rows = () if self.index is None else self._rows.values()
        files = (file for row in rows for file in self.index.references(row))  # type: ignore[union-attr]
        return {(file.path, file.size, file.mtime_ns): (file.width, file.height) for file in files}

    def rows(self, paths: list[bytes]) -> RowIndices:
        """int64 [paths]: the previous row of each path, -1 for new ones."""
        get = self._rows.get
        return np.array([get(path, -1) for path in paths], dtype=np.int64)


class _RowBuilder:
    """Builds one concept's rows; all arrays have one element per scanned image until `build` drops the unusable."""

    def __init__(
        self,
        scan: FolderScan,
        concept: Concept,
        previous: _PreviousRows,
        most_references: int,
        journal: Journal | None = None,
    ) -> None:
        self.journal = journal or Journal(None)
        self.scan, self.concept, self.previous, self.most_references = scan, concept, previous, most_references
        self.paths = scan.paths
        self.previous_row = previous.rows(self.paths)
        self.problems = list(scan.problems)
        self.caption_faults: list[Problem] = []
        self.usable, self.is_steady = (np.ones(len(self.paths), dtype=np.bool_) for _ in range(2))
        self.frames = np.ones(len(self.paths), dtype=np.int32)
        self.fps = np.zeros(len(self.paths), dtype=np.float64)
        self.lost_references: list[str] = []  # relative paths of images that lack one

    def find_usable(self, most_opened: int) -> NDArray[np.bool_]:
        file, mask = self.scan.stamps[:, 0], self.scan.stamps[:, 2]
        if int((self.previous_row < 0).sum()) <= most_opened:
            with suppress_pillow_warnings(), ThreadPoolExecutor(_THREADS) as pool:
                self._mask_sizes(mask, self._sizes(file, pool, no_progress), pool)
                self._references(pool)
        return self.usable

    def build(self, number: int, progress: ProgressCallback) -> ConceptRows:
        stamps = self.scan.stamps
        file, caption, mask = stamps[:, 0], stamps[:, 1], stamps[:, 2]
        with suppress_pillow_warnings(), ThreadPoolExecutor(_THREADS) as pool:
            sizes = self._sizes(file, pool, progress)
            mask_sizes = self._mask_sizes(mask, sizes, pool)
            transparency = self._transparency(file, mask, pool)
            references = self._references(pool)
            texts, states, places = self._captions(caption, pool)
        keep = np.flatnonzero(self.usable)
        masks = self.scan.mask_at
        if self.concept.alpha_mask:
            own = transparency == TRANSPARENT
            mask[own], mask_sizes[own] = file[own], sizes[own]
            masks = masks | {self.paths[row]: os.fsdecode(self.paths[row]) for row in np.flatnonzero(own).tolist()}
        columns: dict[str, Column] = {
            "size": file[:, 0],
            "mtime_ns": file[:, 1],
            "width": sizes[:, 0],
            "height": sizes[:, 1],
            "path_hash": self._path_hashes(),
            "caption_file": caption,
            "caption_state": states,
            "caption_place": places,
            "mask_file": mask,
            "mask_size": mask_sizes,
            "transparency": transparency,
            "frames": self.frames,
            "fps": self.fps,
            "is_steady": self.is_steady,
        }
        return ConceptRows(
            number,
            {name: np.ascontiguousarray(column[keep]) for name, column in columns.items()},
            [self.paths[row] for row in keep.tolist()],
            [texts[row] for row in keep.tolist()],
            [os.fsencode(masks.get(self.paths[row], "")) for row in keep.tolist()],
            [pack_references(references[row]) for row in keep.tolist()],
            self.captions.origin,
            self.problems,
            self.caption_faults,
            self._with_references(references, keep.tolist()),
        )

    def _sizes(self, file: RowIndices, pool: ThreadPoolExecutor, progress: ProgressCallback) -> NDArray[np.int32]:
        """int32 [n, 2]: width, height in pixels; only files whose size or mtime changed are opened. Of videos, `frames`
        and so on are set, too."""
        sizes = np.zeros((len(self.paths), 2), dtype=np.int32)
        reused = np.zeros(len(self.paths), dtype=np.bool_)
        may_be_video = self._may_be_video()
        if self.previous.index is not None:
            index = self.previous.index
            stamps = np.stack([index.size, index.mtime_ns], axis=1)
            reused = self._unchanged(stamps, file)
            # of an index without videos it is not known whether an image is one
            reused[reused] = ~may_be_video[reused] | (index.fps[self.previous_row[reused]] > 0)
            known = self.previous_row[reused]
            sizes[reused, 0], sizes[reused, 1] = index.width[known], index.height[known]
            if self.scan.takes_videos:
                self.frames[reused], self.fps[reused] = index.frames[known], index.fps[known]
                self.is_steady[reused] = index.is_steady[known]
        changed = np.flatnonzero(~reused).tolist()

        def find(row: int) -> tuple[int, int] | str:
            return self._video_size(row) if may_be_video[row] else self._size(self._file(row), file[row])

        for done, (row, size) in enumerate(_map(pool, changed, find), start=1):
            sizes[row] = self._size_or_reject(row, size)
            progress(len(self.paths) - len(changed) + done, len(self.paths))
        for row in np.flatnonzero((sizes.min(axis=1, initial=1 << 30) < self.concept.min_size) & self.usable).tolist():
            size = f"{sizes[row, 0]}x{sizes[row, 1]}"
            self._size_or_reject(row, f"skipped: {size} is smaller than min_size ({self.concept.min_size})")
        return sizes

    def _mask_sizes(self, mask: RowIndices, sizes: NDArray[np.int32], pool: ThreadPoolExecutor) -> NDArray[np.int32]:
        """int32 [n, 2]: width, height of the masks, 0 without; images whose mask does not fit are rejected."""
        mask_sizes = np.zeros((len(self.paths), 2), dtype=np.int32)
        reused = np.zeros(len(self.paths), dtype=np.bool_)
        if self.previous.index is not None:
            reused = self._unchanged(self.previous.index.mask_file, mask)
            mask_sizes[reused] = self.previous.index.mask_size[self.previous_row[reused]]
        changed = np.flatnonzero(~reused & (mask[:, 0] >= 0) & self.usable).tolist()
        for row, size in _map(pool, changed, lambda row: self._size(self._mask(row), mask[row])):
            mask_sizes[row] = self._size_or_reject(row, f"its mask is {size}" if isinstance(size, str) else size)
        for row in np.flatnonzero((mask_sizes[:, 0] > 0) & self.usable).tolist():
            stretch = (mask_sizes[row, 0] / mask_sizes[row, 1]) / (sizes[row, 0] / sizes[row, 1])
            if abs(stretch - 1) > _MAX_ASPECT_DIFFERENCE:
                shapes = f"{mask_sizes[row, 0]}x{mask_sizes[row, 1]}, the image {sizes[row, 0]}x{sizes[row, 1]}"
                self._size_or_reject(row, f"skipped: its mask has another shape ({shapes})")
        return mask_sizes

    def _transparency(self, file: RowIndices, mask: RowIndices, pool: ThreadPoolExecutor) -> NDArray[np.uint8]:
        """uint8 [n]: OPAQUE or TRANSPARENT for images without a mask file, 0 for others; also where there is no mask
        at all, so that it can be said what `alpha_mask` would do."""
        found = np.zeros(len(self.paths), dtype=np.uint8)
        has_file = mask[:, 0] >= 0
        if not self.scan.with_masks or (has_file.any() and not self.concept.alpha_mask):
            return found
        if self.previous.index is not None:
            index = self.previous.index
            reused = self._unchanged(np.stack([index.size, index.mtime_ns], axis=1), file)
            found[reused] = index.transparency[self.previous_row[reused]]
        has_none = has_file | (self.fps > 0)
        found[has_none] = 0
        unknown = np.flatnonzero((found == 0) & ~has_none & self.usable).tolist()
        for row, is_transparent in _map(pool, unknown, lambda row: _try_transparency(self._file(row))):
            found[row] = TRANSPARENT if is_transparent else OPAQUE
        return found

    def _references(self, pool: ThreadPoolExecutor) -> list[tuple[ReferenceFile, ...]]:
        """The reference images of each image, with their sizes; images that lack some are rejected."""
        found: list[tuple[ReferenceFile, ...]] = [()] * len(self.paths)
        folders = [ReferenceFolder(root) for root in reference_roots(self.concept)]
        if not folders:
            return found
        known = self.previous.reference_sizes()

        def find(row: int) -> tuple[ReferenceFile, ...] | str:
            try:
                files = references_of(os.fsdecode(self.paths[row]), folders, self.most_references)
            except OSError as error:
                return f"skipped: its reference image {error.filename}: {error.strerror}"
            if isinstance(files, str):
                self.lost_references.append(os.fsdecode(self.paths[row]))
                return files
            with_sizes = []
            for file in files:
                size = known.get((file.path, file.size, file.mtime_ns)) or _try_size(file.path)
                if isinstance(size, str):
                    return f"skipped: its reference image {file.path}: {size.removeprefix('skipped: ')}"
                with_sizes.append(replace(file, width=size[0], height=size[1]))
            return tuple(with_sizes)

        for row, files in _map(pool, np.flatnonzero(self.usable).tolist(), find):
            if isinstance(files, str):
                self._size_or_reject(row, files)
            else:
                found[row] = files
        return found

    def _with_references(self, references: list[tuple[ReferenceFile, ...]], rows: list[int]) -> Findings:
        """The findings, and what was found of the references of the images that are kept."""
        having = [row for row in rows if references[row]]
        lost = sorted(self.lost_references)
        names = [os.fsdecode(self.paths[row]) for row in having[:1]]
        return replace(
            self.findings,
            references=len(having),
            reference_example=printable(f"{references[having[0]][0].path} of {names[0]}", 300) if having else "",
            lost_references=len(lost),
            lost_reference_example=printable(lost[0], 200) if lost else "",
        )

    def _captions(
        self, caption: RowIndices, pool: ThreadPoolExecutor
    ) -> tuple[list[bytes], NDArray[np.uint8], NDArray[np.uint8]]:
        """Caption text, CaptionState and CaptionPlace of each image."""
        self.captions = captions = Captions(self.concept, self.scan)
        texts = [b""] * len(self.paths)
        states, places = (np.zeros(len(self.paths), dtype=np.uint8) for _ in range(2))
        reused = np.zeros(len(self.paths), dtype=np.bool_)
        index, found_before = self.previous.index, CaptionFindings()
        if index is not None and self.previous.origin == captions.origin:
            reused = self._unchanged(index.caption_file, caption)
            reused[reused] = index.caption_state[self.previous_row[reused]] != CaptionState.UNREADABLE
            stored = index.caption_texts.unpack()
            for row, old in zip(np.flatnonzero(reused).tolist(), self.previous_row[reused].tolist(), strict=True):
                texts[row] = stored[old]
            states[reused] = index.caption_state[self.previous_row[reused]]
            places[reused] = index.caption_place[self.previous_row[reused]]
            found_before, captions.encoding = self.previous.findings.captions, self.previous.findings.encoding
            metadata = {
                os.path.join(self.scan.root, relative) for relative, _ in (*self.scan.metadata, *self.scan.lists)
            }
            self.problems += [problem for problem in index.header.problems if problem.path in metadata]
        else:
            captions.read_metadata()
            self.problems += captions.problems

        origin = captions.origin

        def find(row: int) -> FoundCaption:
            path, stamp = os.fsdecode(self.paths[row]), _stamp(caption[row])
            if stamp == NO_FILE:
                return captions.find(path, has_caption_file=False)
            if (known := self.journal.caption(origin, self._file(row), stamp)) is not None:
                return FoundCaption(tuple(known[0]), known[1], known[2])
            found = captions.find(path, has_caption_file=True)
            if found.state not in (CaptionState.UNREADABLE, CaptionState.OTHER_ENCODING):
                self.journal.add_caption(origin, self._file(row), stamp, found)
            return found

        def keep(row: int, found: FoundCaption) -> None:
            texts[row], states[row], places[row] = pack_captions(found.captions), found.state, found.place
            if found.state == CaptionState.UNREADABLE:
                self.caption_faults.append(Problem(self._file(row), captions.faults[os.fsdecode(self.paths[row])]))

        encoded = []
        for row, found in _map(pool, np.flatnonzero(~reused & self.usable).tolist(), find):
            keep(row, found)
            if found.state == CaptionState.OTHER_ENCODING:
                encoded.append(row)
        if encoded:
            for row, found in zip(
                encoded, captions.find_encoded([os.fsdecode(self.paths[r]) for r in encoded]), strict=True
            ):
                keep(row, found)
        if not reused.all() or len(self.previous) != int(self.usable.sum()):
            has_file = (caption[:, 0] >= 0).tolist()
            found_before = captions.findings([os.fsdecode(path) for path in self.paths], has_file)
        self.findings = Findings.of(self.scan, found_before, captions.encoding)
        return texts, states, places

    def _size(self, path: str, row: NDArray[np.int64]) -> tuple[int, int] | str:
        stamp = _stamp(row)
        size = self.journal.size(path, stamp) or _try_size(path)
        if isinstance(size, tuple):
            self.journal.add_size(path, stamp, size)
        return size

    def _may_be_video(self) -> NDArray[np.bool_]:
        """bool [n]: by their names."""
        if not self.scan.takes_videos:
            return np.zeros(len(self.paths), dtype=np.bool_)
        videos = VIDEO_SUFFIXES | ANIMATION_SUFFIXES
        suffixes = (os.path.splitext(os.fsdecode(path))[1].lower() for path in self.paths)
        return np.array([each in videos for each in suffixes], dtype=np.bool_)

    def _video_size(self, row: int) -> tuple[int, int] | str:
        """The size of what may be a video, of which frames and rate are kept."""
        try:
            header = read_video(self._file(row))
        except IMAGE_ERRORS as error:
            return describe_image_error(error)
        if header is None:
            return _try_size(self._file(row))
        self.frames[row], self.fps[row], self.is_steady[row] = header.frames, header.fps, header.is_steady
        return header.width, header.height

    def _path_hashes(self) -> NDArray[np.uint64]:
        hashes = np.zeros(len(self.paths), dtype=np.uint64)
        seen = self.previous_row >= 0
        if self.previous.index is not None:
            hashes[seen] = self.previous.index.path_hash[self.previous_row[seen]]
        for row in np.flatnonzero(~seen).tolist():
            hashes[row] = hash_bytes(self.paths[row])
        return hashes

    def _unchanged(self, stored: RowIndices, found: RowIndices) -> NDArray[np.bool_]:
        """bool [n]: the image is in the previous index and its [n, 2] stamps are the same."""
        same = self.previous_row >= 0
        same[same] = (stored[self.previous_row[same]] == found[same]).all(axis=1)
        return same

    def _size_or_reject(self, row: int, size: tuple[int, int] | str) -> tuple[int, int]:
        """The size; if it is a reason instead, the row is rejected with it."""
        if isinstance(size, tuple):
            return size
        self.usable[row] = False
        self.problems.append(Problem(self._file(row), size))
        return 0, 0

    def _mask(self, row: int) -> str:
        path = os.fsdecode(self.paths[row])
        mask = self.scan.mask_at.get(self.paths[row], os.path.splitext(path)[0] + self.concept.mask_suffix)
        return os.path.join(self.scan.root, mask)

    def _file(self, row: int) -> str:
        return os.path.join(self.scan.root, os.fsdecode(self.paths[row]))


def _stamp(row: NDArray[np.int64]) -> tuple[int, int]:
    size, mtime_ns = row.tolist()  # one row at a time: lists of a million rows take 100 MB
    return size, mtime_ns


def _try_size(path: str) -> tuple[int, int] | str:
    try:
        width, height = read_image_size(path)
    except IMAGE_ERRORS as error:
        return describe_image_error(error)
    return (width, height) if width > 0 and height > 0 else "skipped: it has no pixels"


def _try_transparency(path: str) -> bool:
    try:
        return read_transparency(path)
    except IMAGE_ERRORS:  # it was read a moment ago; what is wrong now is said when it is decoded
        return False


def _map(pool: ThreadPoolExecutor, rows: list[int], work: Callable[[int], Result]) -> Iterator[tuple[int, Result]]:
    """(row, work(row)) in order, computed by the pool's threads."""
    chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    for chunk, results in zip(chunks, pool.map(lambda chunk: [work(row) for row in chunk], chunks), strict=True):
        yield from zip(chunk, results, strict=True)
