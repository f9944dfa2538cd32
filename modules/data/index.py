"""The index: one table of all pictures of all concepts, in an order that every process agrees on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from modules.config import DataError, TrainConfig
from modules.data.buckets import Bucket
from modules.data.captions import CaptionState
from modules.data.concepts import concept_root
from modules.data.problems import Problem
from modules.data.table import Column, Texts, map_table

FORMAT = 1
ProgressCallback: TypeAlias = Callable[[int, int], None]  # (done, total)


def silent(done: int, total: int) -> None:
    """Progress nobody watches."""


@dataclass(frozen=True)
class Facts:
    """What the index knows besides its columns."""

    roots: tuple[str, ...]  # one per entry of config.concepts, absolute; "" where the concept is switched off
    origins: tuple[str, ...]  # where captions come from, per concept
    buckets: tuple[Bucket, ...]
    problems: tuple[Problem, ...]  # of files that are no rows, and of metadata files
    files_seen: int

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Facts:
        """Raises ValueError, KeyError or TypeError where the text is not from `dump`."""
        data = json.loads(text)
        return cls(
            roots=tuple(data["roots"]),
            origins=tuple(data["origins"]),
            buckets=tuple(Bucket(**bucket) for bucket in data["buckets"]),
            problems=tuple(Problem(**problem) for problem in data["problems"]),
            files_seen=data["files_seen"],
        )


class Index:
    """The table. Rows are sorted by (concept, relative path); columns are numpy arrays of one element per
    row."""

    def __init__(self, path: Path, columns: dict[str, Column], facts: Facts) -> None:
        self.path = path
        self.facts = facts
        self.concept = cast("NDArray[np.int32]", columns["concept"])  # position in config.concepts
        self.size = cast("NDArray[np.int64]", columns["size"])  # of the file, bytes
        self.mtime_ns = cast("NDArray[np.int64]", columns["mtime_ns"])
        self.width = cast("NDArray[np.int32]", columns["width"])  # upright
        self.height = cast("NDArray[np.int32]", columns["height"])
        self.bucket = cast("NDArray[np.int32]", columns["bucket"])  # position in `buckets`
        self.validation = cast("NDArray[np.bool_]", columns["validation"])
        self.path_hash = cast("NDArray[np.uint64]", columns["path_hash"])  # of the relative path alone
        self.caption_file = cast("NDArray[np.int64]", columns["caption_file"])  # [n, 2] size, mtime; -1 without
        self.caption_state = cast("NDArray[np.uint8]", columns["caption_state"])
        self.mask_file = cast("NDArray[np.int64]", columns["mask_file"])  # [n, 2] size, mtime; -1 without
        self.mask_size = cast("NDArray[np.int32]", columns["mask_size"])  # [n, 2] width, height; 0 without
        self.paths = _texts(columns, "path")
        self.caption_texts = _texts(columns, "caption")  # several captions: one a line

    def __len__(self) -> int:
        return len(self.concept)

    def __reduce__(self) -> tuple[Callable[[Path], Index], tuple[Path]]:
        # Loader processes that are spawned map the file again instead of receiving a copy of the table.
        return load_index, (self.path,)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return self.facts.buckets

    def relative_path(self, row: int) -> str:
        """The picture's path below its concept folder."""
        return os.fsdecode(self.paths[row])

    def file(self, row: int) -> str:
        """The picture's absolute path."""
        return os.path.join(self.facts.roots[self.concept[row]], self.relative_path(row))

    def files(self) -> Iterator[str]:
        """The absolute paths of all rows, in order: quicker than one by one."""
        for number, root in enumerate(self.facts.roots):
            first, last = np.searchsorted(self.concept, [number, number + 1]).tolist()
            for path in self.paths.unpack(first, last):
                yield os.path.join(root, os.fsdecode(path))

    def captions(self, row: int) -> tuple[str, ...]:
        """The picture's captions as written, at least one; "" where it has none."""
        return tuple(self.caption_texts[row].decode("utf-8").split("\n"))

    def has_mask(self, row: int) -> bool:
        return bool(self.mask_file[row, 0] >= 0)

    def problems(self) -> list[Problem]:
        """Everything that was wrong with a file when the index was built, whether the picture is used or
        not."""
        found = list(self.facts.problems)
        for row in np.flatnonzero(self.caption_state).tolist():
            found.append(Problem(self.file(row), CaptionState(int(self.caption_state[row])).explain()))
        other_size = (self.mask_size != np.stack([self.width, self.height], axis=1)).any(axis=1)
        for row in np.flatnonzero(other_size & (self.mask_file[:, 0] >= 0)).tolist():
            size = "x".join(map(str, self.mask_size[row].tolist()))
            found.append(Problem(self.file(row), f"its mask has another size ({size}); the mask was scaled"))
        return found


def index_path(config: TrainConfig, size_step: int, cache_dir: Path) -> Path:
    """Where the index for these settings is stored; runs with other settings do not disturb each other's."""
    concepts = [
        [concept_root(c), c.enabled, c.kind, c.include_subfolders, c.caption_source, c.mask_suffix]
        for c in config.concepts
    ]
    sizes = [config.resolution, config.aspect_ratio_bucketing, size_step]
    split = [config.validation_split, config.seed, config.masked_training]
    digest = hashlib.sha256(json.dumps([FORMAT, concepts, sizes, split]).encode()).hexdigest()
    return cache_dir / f"index-{digest[:16]}.safetensors"


def load_index(path: Path) -> Index:
    """Map the stored index. Raises DataError where it is missing or damaged."""
    try:
        columns, meta = map_table(path)
        return Index(path, columns, Facts.parse(meta))
    except OSError as error:
        raise DataError(f"The index {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"The index {str(path)!r} is damaged ({error}).", "Delete it; the next start builds it again."
        ) from error


def _texts(columns: dict[str, Column], name: str) -> Texts:
    return Texts(
        cast("NDArray[np.uint8]", columns[f"{name}_blob"]),
        cast("NDArray[np.uint64]", columns[f"{name}_starts"]),
    )
