"""The rows of one concept: what the last index knew, and for new and changed files what their headers say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept
from modules.data.captions import Captions, CaptionState
from modules.data.concepts import FolderScan
from modules.data.hashing import hash_path
from modules.data.index import Index, ProgressCallback
from modules.data.pictures import BROKEN, explain, quiet_pillow, read_size
from modules.data.problems import Problem
from modules.data.table import Column

Rows: TypeAlias = NDArray[np.int64]
Result = TypeVar("Result")

_THREADS = 4  # on a network drive waiting takes the time, not the processor
_CHUNK = 256
_SAME_ASPECT = 0.01


@dataclass
class IndexPart:
    """One concept's columns, and what stands beside them."""

    number: int
    columns: dict[str, Column]
    paths: list[bytes]
    captions: list[bytes]
    origin: str
    problems: list[Problem]


def index_concept(
    number: int, scan: FolderScan, concept: Concept, previous: Index | None, progress: ProgressCallback
) -> IndexPart:
    """Table rows for the scanned pictures; files that cannot be used become problems instead of rows."""
    return _PartBuilder(scan, concept, _Known.of(previous, scan.root, number)).build(number, progress)


class _Known:
    """One concept's rows of an earlier index, found by relative path."""

    def __init__(self, index: Index | None, origin: str, rows: dict[bytes, int]) -> None:
        self.index, self.origin, self._rows = index, origin, rows

    @classmethod
    def of(cls, index: Index | None, root: str, number: int) -> _Known:
        if index is None or root not in index.facts.roots:
            return cls(None, "", {})
        roots = index.facts.roots
        # The same folder may serve two concepts; then the same place in the list is the same concept.
        number = number if roots[number : number + 1] == (root,) else roots.index(root)
        first, last = np.searchsorted(index.concept, [number, number + 1]).tolist()
        paths = index.paths.unpack(first, last)
        return cls(index, index.facts.origins[number], dict(zip(paths, range(first, last), strict=True)))

    def rows(self, paths: list[bytes]) -> Rows:
        """The old row of each path, -1 where it is new."""
        get = self._rows.get
        return np.array([get(path, -1) for path in paths], dtype=np.int64)


class _PartBuilder:
    def __init__(self, scan: FolderScan, concept: Concept, known: _Known) -> None:
        self.scan, self.concept, self.known = scan, concept, known
        self.paths = scan.paths
        self.old = known.rows(self.paths)
        self.problems = list(scan.problems)
        self.usable = np.ones(len(self.paths), dtype=np.bool_)
        self.done = 0

    def build(self, number: int, progress: ProgressCallback) -> IndexPart:
        stamps = self.scan.stamps
        file, caption, mask = stamps[:, 0], stamps[:, 1], stamps[:, 2]
        with quiet_pillow(), ThreadPoolExecutor(_THREADS) as pool:
            sizes = self._sizes(file, pool, progress)
            mask_sizes = self._mask_sizes(mask, sizes, pool)
            texts, states, origin = self._captions(caption, pool)
        keep = np.flatnonzero(self.usable)
        columns: dict[str, Column] = {
            "size": file[:, 0],
            "mtime_ns": file[:, 1],
            "width": sizes[:, 0],
            "height": sizes[:, 1],
            "path_hash": self._path_hashes(),
            "caption_file": caption,
            "caption_state": states,
            "mask_file": mask,
            "mask_size": mask_sizes,
        }
        return IndexPart(
            number,
            {name: np.ascontiguousarray(column[keep]) for name, column in columns.items()},
            [self.paths[row] for row in keep.tolist()],
            [texts[row] for row in keep.tolist()],
            origin,
            self.problems,
        )

    def _sizes(self, file: Rows, pool: ThreadPoolExecutor, progress: ProgressCallback) -> NDArray[np.int32]:
        """[n, 2] width, height; only files whose size or date changed are opened."""
        sizes = np.zeros((len(self.paths), 2), dtype=np.int32)
        reused = np.zeros(len(self.paths), dtype=np.bool_)
        if self.known.index is not None:
            index = self.known.index
            stamps = np.stack([index.size, index.mtime_ns], axis=1)
            reused = self._unchanged(stamps, file)
            sizes[reused, 0] = index.width[self.old[reused]]
            sizes[reused, 1] = index.height[self.old[reused]]
        fresh = np.flatnonzero(~reused).tolist()
        for done, (row, found) in enumerate(_each(pool, fresh, lambda row: _try_size(self._file(row))), start=1):
            sizes[row] = self._accept(row, found)
            progress(done, len(fresh))
        return sizes

    def _mask_sizes(self, mask: Rows, sizes: NDArray[np.int32], pool: ThreadPoolExecutor) -> NDArray[np.int32]:
        """[n, 2] width, height of the masks, 0 without; pictures whose mask does not fit are not used."""
        mask_sizes = np.zeros((len(self.paths), 2), dtype=np.int32)
        reused = np.zeros(len(self.paths), dtype=np.bool_)
        if self.known.index is not None:
            reused = self._unchanged(self.known.index.mask_file, mask)
            mask_sizes[reused] = self.known.index.mask_size[self.old[reused]]
        fresh = np.flatnonzero(~reused & (mask[:, 0] >= 0) & self.usable).tolist()
        for row, found in _each(pool, fresh, lambda row: _try_size(self._mask_file(row))):
            what = f"its mask is {found}" if isinstance(found, str) else found
            mask_sizes[row] = self._accept(row, what)
        for row in np.flatnonzero((mask_sizes[:, 0] > 0) & self.usable).tolist():
            stretch = (mask_sizes[row, 0] / mask_sizes[row, 1]) / (sizes[row, 0] / sizes[row, 1])
            if abs(stretch - 1) > _SAME_ASPECT:
                shapes = f"{mask_sizes[row, 0]}x{mask_sizes[row, 1]}, the picture {sizes[row, 0]}x{sizes[row, 1]}"
                self._accept(row, f"skipped: its mask has another shape ({shapes})")
        return mask_sizes

    def _captions(self, caption: Rows, pool: ThreadPoolExecutor) -> tuple[list[bytes], NDArray[np.uint8], str]:
        captions = Captions(self.concept.caption_source, self.scan)
        texts = [b""] * len(self.paths)
        states = np.zeros(len(self.paths), dtype=np.uint8)
        reused = np.zeros(len(self.paths), dtype=np.bool_)
        index = self.known.index
        if index is not None and self.known.origin == captions.origin:
            reused = self._unchanged(index.caption_file, caption)
            stored = index.caption_texts.unpack()
            for row, old in zip(np.flatnonzero(reused).tolist(), self.old[reused].tolist(), strict=True):
                texts[row] = stored[old]
            states[reused] = index.caption_state[self.old[reused]]
            metadata = {os.path.join(self.scan.root, relative) for relative, _ in self.scan.metadata}
            self.problems += [problem for problem in index.facts.problems if problem.path in metadata]
        else:
            captions.read_metadata()
            self.problems += captions.problems

        def find(row: int) -> tuple[tuple[str, ...], CaptionState]:
            path = os.fsdecode(self.paths[row])
            return captions.find(path, has_text_file=bool(caption[row, 0] >= 0))

        for row, (found, state) in _each(pool, np.flatnonzero(~reused & self.usable).tolist(), find):
            texts[row] = "\n".join(found).encode("utf-8")
            states[row] = state
        return texts, states, captions.origin

    def _path_hashes(self) -> NDArray[np.uint64]:
        hashes = np.zeros(len(self.paths), dtype=np.uint64)
        seen = self.old >= 0
        if self.known.index is not None:
            hashes[seen] = self.known.index.path_hash[self.old[seen]]
        for row in np.flatnonzero(~seen).tolist():
            hashes[row] = hash_path(self.paths[row])
        return hashes

    def _unchanged(self, stored: Rows, found: Rows) -> NDArray[np.bool_]:
        """Rows of the earlier index whose [n, 2] stamps are still the same."""
        same = self.old >= 0
        same[same] = (stored[self.old[same]] == found[same]).all(axis=1)
        return same

    def _accept(self, row: int, found: tuple[int, int] | str) -> tuple[int, int]:
        """The size found, or, where it is a reason instead, the row struck out."""
        if isinstance(found, tuple):
            return found
        self.usable[row] = False
        self.problems.append(Problem(self._file(row), found))
        return 0, 0

    def _file(self, row: int) -> str:
        return os.path.join(self.scan.root, os.fsdecode(self.paths[row]))

    def _mask_file(self, row: int) -> str:
        return mask_file(self._file(row), self.concept)


def mask_file(picture: str, concept: Concept) -> str:
    """Where the mask of a picture lies, if it has one."""
    return os.path.splitext(picture)[0] + concept.mask_suffix


def _try_size(path: str) -> tuple[int, int] | str:
    try:
        width, height = read_size(path)
    except BROKEN as error:
        return explain(error)
    return (width, height) if width > 0 and height > 0 else "skipped: it has no pixels"


def _each(pool: ThreadPoolExecutor, rows: list[int], work: Callable[[int], Result]) -> Iterator[tuple[int, Result]]:
    """(row, work(row)) in order, computed by several threads."""
    chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    for chunk, results in zip(chunks, pool.map(lambda chunk: [work(row) for row in chunk], chunks), strict=True):
        yield from zip(chunk, results, strict=True)
