"""The index: one table of all images of all concepts, in an order that is the same in every process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept, DataError, TrainConfig
from modules.config.captions import CaptionPlace, CaptionState
from modules.data.index.buckets import Bucket
from modules.data.index.captions import unpack_captions
from modules.data.index.clips import ClipTimes, clip_notes, moments
from modules.data.index.column_store import Column, StringColumn, map_columns
from modules.data.index.findings import Findings
from modules.data.index.problems import Problem
from modules.data.index.references import ReferenceFile, reference_roots, unpack_references
from modules.data.index.scan import concept_root
from modules.data.rng import UInt64Array, hash_uint64
from modules.files import FileFault, decode_json, validate_record

FORMAT = 1
OPAQUE, TRANSPARENT = 1, 2  # of the column transparency
ProgressCallback: TypeAlias = Callable[[int, int], None]  # (done, total)


def no_progress(done: int, total: int) -> None:
    """A ProgressCallback that does nothing."""


@dataclass(frozen=True)
class IndexHeader:
    """What the index stores besides its columns; JSON in the file, so the names are part of the format."""

    roots: tuple[str, ...]  # one per entry of config.concepts, absolute; "" if the concept is switched off
    origins: tuple[str, ...]  # Captions.origin, per concept
    buckets: tuple[Bucket, ...]
    problems: tuple[Problem, ...]  # of files that did not become rows, and of metadata and caption files
    files_seen: int
    other_files: tuple[dict[str, int], ...] = ()  # per concept: suffix -> files that are not images, the most first
    findings: tuple[Findings, ...] = ()  # per concept; indexes of 0.1.0 have none
    clip_rate: float = 0.0  # frames per second of clips in training; 0 if videos are passed over
    most_frames: int = 1  # of a clip

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> IndexHeader:
        """The header of a `dump`. Raises FileFault if the text is not one."""
        header = validate_record(cls, decode_json(text))
        if len(header.origins) != len(header.roots):
            raise FileFault("has other origins than roots")
        if header.findings and len(header.findings) != len(header.roots):
            raise FileFault("has other findings than roots")
        return header


class Index:
    """The table. Rows are sorted by (concept, relative path); columns are arrays [rows], read-only memory maps."""

    def __init__(self, path: Path, columns: dict[str, Column], header: IndexHeader) -> None:
        self.path = path
        self.columns = columns
        self.header = header
        self.concept = cast("NDArray[np.int32]", columns["concept"])  # position in config.concepts
        self.size = cast("NDArray[np.int64]", columns["size"])  # file size in bytes
        self.mtime_ns = cast("NDArray[np.int64]", columns["mtime_ns"])
        self.width = cast("NDArray[np.int32]", columns["width"])  # pixels, with the orientation applied
        self.height = cast("NDArray[np.int32]", columns["height"])
        self.bucket = cast("NDArray[np.int32]", columns["bucket"])  # position in `buckets`
        self.validation = cast("NDArray[np.bool_]", columns["validation"])  # not trained on: validation or test
        self.path_hash = cast("NDArray[np.uint64]", columns["path_hash"])  # of the relative path alone
        self.caption_file = cast("NDArray[np.int64]", columns["caption_file"])  # [rows, 2] size, mtime_ns; -1 without
        self.caption_state = cast("NDArray[np.uint8]", columns["caption_state"])  # CaptionState
        self.caption_place = cast("NDArray[np.uint8]", columns["caption_place"])  # CaptionPlace
        self.frames = cast("NDArray[np.int32]", columns["frames"])  # of the file: 1 of stills
        self.fps = cast("NDArray[np.float64]", columns["fps"])  # of a video, mean frames a second; 0 of stills
        self.is_steady = cast("NDArray[np.bool_]", columns["is_steady"])  # false of a video of variable rate
        self.mask_file = cast("NDArray[np.int64]", columns["mask_file"])  # [rows, 2] size, mtime_ns; -1 without
        self.mask_size = cast("NDArray[np.int32]", columns["mask_size"])  # [rows, 2] width, height; 0 without
        self.paths = _string_column(columns, "path")
        self.caption_texts = _string_column(columns, "caption")  # from `pack_captions`
        self.masks = _string_column(columns, "mask")  # relative paths of those that are not NAME + mask_suffix
        self.reference_files = _string_column(columns, "reference")  # from `pack_references`

        # OPAQUE or TRANSPARENT where `alpha_mask` may matter, else 0; a column only if it does, so that others keep
        # their digest.
        self.transparency = cast(
            "NDArray[np.uint8]", columns.get("transparency", np.zeros(len(self.concept), dtype=np.uint8))
        )

    def __len__(self) -> int:
        return len(self.concept)

    def __reduce__(self) -> tuple[Callable[..., Index], tuple[object, ...]]:
        # Spawned loader workers map the file again instead of receiving a copy of the table, unless it is gone.
        try:
            is_there = load_index(self.path).digest == self.digest
        except DataError:
            is_there = False
        if is_there:
            return _load_same, (self.path, self.digest)
        return Index, (self.path, {name: np.array(column) for name, column in self.columns.items()}, self.header)

    @cached_property
    def digest(self) -> str:
        """Of all columns and the header as they are here: another run may have put another index at `path`."""
        digest = hashlib.sha256(self.header.dump().encode())
        for name, column in sorted(self.columns.items()):
            digest.update(f"{name} {column.dtype} {column.shape}".encode())
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    @property
    def stored_columns(self) -> dict[str, Column]:
        """The columns that `load_index` cannot do without: an index without videos is as those up to 0.3.0."""
        of_videos = () if (self.fps > 0).any() else ("frames", "fps", "is_steady")
        return {name: column for name, column in self.columns.items() if name not in of_videos}

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All buckets; the `bucket` column holds positions in it."""
        return self.header.buckets

    def relative_path(self, row: int) -> str:
        """The image's path below its concept folder."""
        return os.fsdecode(self.paths[row])

    def file(self, row: int) -> str:
        """The image's absolute path."""
        return os.path.join(self.header.roots[self.concept[row]], self.relative_path(row))

    def identities(self, concepts: Sequence[Concept]) -> UInt64Array:
        """uint64 [rows]: what each image is known by, its concept, of those that `concept` counts, and its path below
        it, wherever its row is."""
        keys = [concept.key(number) for number, concept in enumerate(concepts)]
        return hash_uint64(self.path_hash, np.array(keys, dtype=np.uint64)[self.concept])

    def files(self) -> Iterator[str]:
        """The absolute paths of all rows, in order: faster than `file` for each row."""
        for number, root in enumerate(self.header.roots):
            first, last = np.searchsorted(self.concept, [number, number + 1]).tolist()
            start = os.path.join(root, "")  # once: a path below it never begins with a slash
            for path in self.paths.unpack(first, last):
                yield start + os.fsdecode(path)

    def captions(self, row: int) -> tuple[str, ...]:
        """The image's captions as written, at least one; ("",) if it has none."""
        return unpack_captions(self.caption_texts[row])

    def is_video(self, row: int) -> bool:
        """Whether its file is a video, also if one frame of it is trained on."""
        return bool(self.fps[row] > 0)

    def spare_moments(self, row: int) -> int:
        """How many moments later than at its first a clip of a video may begin."""
        found = moments(int(self.frames[row]), float(self.fps[row]), self.header.clip_rate)
        return found - self.clip_times(row, 0).frames

    def clip_times(self, row: int, start: int) -> ClipTimes:
        """Those of the clip of a video that begins at the moment `start`."""
        bucket: Bucket = self.buckets[self.bucket[row]]
        return ClipTimes(start, bucket.frames, self.header.clip_rate)

    def has_mask(self, row: int) -> bool:
        """Whether the image has a mask, a file or its transparency (always false without masked_training)."""
        return bool(self.mask_file[row, 0] >= 0)

    def is_alpha_mask(self, row: int) -> bool:
        """Whether the mask that the image has is its own transparency."""
        return self.has_mask(row) and bool(self.transparency[row] == TRANSPARENT)

    def mask(self, row: int, mask_suffix: str) -> str:
        """The absolute path of the file with the mask that the image has; `mask_suffix` is its concept's."""
        path = self.relative_path(row)
        mask = os.fsdecode(self.masks[row]) or os.path.splitext(path)[0] + mask_suffix
        return os.path.join(self.header.roots[self.concept[row]], mask)

    def references(self, row: int) -> tuple[ReferenceFile, ...]:
        """The image's reference images; their sizes in training are those of its bucket."""
        return unpack_references(self.reference_files[row]) if len(self.reference_files.blob) else ()

    def reference_sizes(self, row: int) -> tuple[tuple[int, int], ...]:
        """(height, width) of each of the image's references in training."""
        bucket: Bucket = self.buckets[self.bucket[row]]
        return bucket.references

    def problems(self) -> list[Problem]:
        """All problems found when the index was built, of used and unused images."""
        found = list(self.header.problems)
        # those of unreadable caption files are in the header
        is_listed = (self.caption_state == CaptionState.FOUND) | (self.caption_state == CaptionState.UNREADABLE)
        for row in np.flatnonzero(~is_listed).tolist():
            found.append(Problem(self.file(row), CaptionState(int(self.caption_state[row])).explain()))
        for row in np.flatnonzero(self.fps > 0).tolist():
            given = int(self.frames[row]), float(self.fps[row]), self.clip_times(row, 0).frames, self.header.most_frames
            notes = clip_notes(*given, is_steady=bool(self.is_steady[row]))
            found += [Problem(self.file(row), what) for what in notes]
        other_size = (self.mask_size != np.stack([self.width, self.height], axis=1)).any(axis=1)
        for row in np.flatnonzero(other_size & (self.mask_file[:, 0] >= 0)).tolist():
            size = "x".join(map(str, self.mask_size[row].tolist()))
            found.append(Problem(self.file(row), f"its mask has another size ({size}); the mask was scaled"))
        return found


def index_path(settings: TrainConfig, seed: int, size_step: int, cache_dir: Path, *, by_image: bool = True) -> Path:
    """The file of the index for these settings; other settings have other files. `by_image`: see `Order`."""
    concepts = [
        [
            *(concept_root(c), c.enabled, c.kind, c.include_subfolders, c.caption_source, c.mask_suffix),
            *(c.caption_lines, *c.caption_extensions, *([[c.caption_column]] if c.caption_column else [])),
            *([["sizes", c.resolutions, c.min_size]] if c.resolutions or c.min_size else []),
            *([["references", *reference_roots(c)]] if c.references else []),
            *(["alpha mask"] if c.alpha_mask else []),
        ]
        for c in settings.concepts
    ]
    sizes = [settings.resolution, settings.aspect_ratio_bucketing, size_step]
    more = [settings.no_upscale, settings.bucket_step, settings.largest_aspect]
    split: list[object] = [settings.validation_split, seed, settings.masked_training]
    if by_image and settings.validation_split:
        split.append("exact")
    if settings.aspect_ratio_bucketing and not settings.fewer_buckets:
        split.append("25 buckets")
    if any(concept.references for concept in settings.concepts):
        pictures = settings.picture_size(1, 1)
        split.append([settings.family, settings.reference_resolution, *([] if pictures is None else [pictures])])
    if settings.clip_step is not None:
        split.append(["clips", settings.clip_step, settings.clip_rate, settings.frames])
    digest = hashlib.sha256(
        json.dumps([FORMAT, concepts, sizes, split, *([] if more == [False, None, 4.0] else [more])]).encode()
    ).hexdigest()
    return cache_dir / f"index-{digest[:16]}.safetensors"


def load_index(path: Path) -> Index:
    """Memory-map the stored index. Raises DataError if it is missing or damaged."""
    try:
        columns, header = map_columns(path)
        columns = _of_former_version(columns) | columns
        parsed = IndexHeader.parse(header)
        _check(columns, parsed)
        return Index(path, columns, parsed)
    except OSError as error:
        raise DataError(f"The index {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise DataError(
            f"The index {str(path)!r} is damaged ({error}).", "Delete it; the next start builds it again."
        ) from error


def _load_same(path: Path, digest: str) -> Index:
    index = load_index(path)
    if index.digest != digest:
        raise DataError(
            f"The index {str(path)!r} is not that of this run any more: another run that has the same settings has "
            "found other files.",
            "--resume latest reads them, too.",
        )
    return index


def _of_former_version(columns: Mapping[str, Column]) -> dict[str, Column]:
    """What the columns that came later are in an index without them: 0.1.0 had captions and masks in one place each,
    and up to 0.3.0 there were neither references nor videos."""
    rows = columns["concept"].size if "concept" in columns else 0
    return {
        "caption_place": np.zeros(rows, dtype=np.uint8),
        "frames": np.ones(rows, dtype=np.int32),
        "fps": np.zeros(rows, dtype=np.float64),
        "is_steady": np.ones(rows, dtype=np.bool_),
        "mask_blob": np.zeros(0, dtype=np.uint8),
        "mask_starts": np.zeros(rows + 1, dtype=np.uint64),
        "reference_blob": np.zeros(0, dtype=np.uint8),
        "reference_starts": np.zeros(rows + 1, dtype=np.uint64),
    }


_PER_ROW = {
    **dict.fromkeys(("concept", "width", "height", "bucket", "frames"), (np.int32, ())),
    **dict.fromkeys(("size", "mtime_ns"), (np.int64, ())),
    **dict.fromkeys(("caption_file", "mask_file"), (np.int64, (2,))),
    "mask_size": (np.int32, (2,)),
    "fps": (np.float64, ()),
    **dict.fromkeys(("validation", "is_steady"), (np.bool_, ())),
    "path_hash": (np.uint64, ()),
    **dict.fromkeys(("caption_state", "caption_place"), (np.uint8, ())),
}


def _check(columns: Mapping[str, Column], header: IndexHeader) -> None:
    """Raises ValueError unless these are the columns of one table; a cache folder may come from somebody else."""
    rows = len(columns["concept"]) if "concept" in columns and columns["concept"].ndim else 0
    for name, (dtype, shape) in _PER_ROW.items():
        if name not in columns or columns[name].dtype != dtype or columns[name].shape != (rows, *shape):
            raise ValueError(f"its column {name} has another type or length")
    transparency = columns.get("transparency")
    if transparency is not None and (transparency.dtype != np.uint8 or transparency.shape != (rows,)):
        raise ValueError("its column transparency has another type or length")
    for name in ("path", "caption", "mask", "reference"):
        blob, starts = columns.get(f"{name}_blob"), columns.get(f"{name}_starts")
        if blob is None or starts is None or blob.dtype != np.uint8 or starts.dtype != np.uint64:
            raise ValueError(f"its column {name} has another type or length")
        if blob.ndim != 1 or starts.shape != (rows + 1,) or starts[0] != 0 or starts[-1] != len(blob):
            raise ValueError(f"its column {name} has another type or length")
        if _falls(starts):
            raise ValueError(f"the texts of its column {name} overlap")
    limits = {"concept": len(header.roots), "bucket": len(header.buckets), "caption_state": len(CaptionState)}
    limits["caption_place"] = len(CaptionPlace)
    for name, limit in limits.items():
        if rows and not 0 <= int(columns[name].min()) <= int(columns[name].max()) < limit:
            raise ValueError(f"its column {name} has a number out of range")
    least = min(int(columns[name].min()) for name in ("width", "height", "frames")) if rows else 1
    if least < 1 or (rows and _falls(columns["concept"])):
        raise ValueError("its rows are not those of an index")
    if rows and not (np.isfinite(columns["fps"]).all() and float(columns["fps"].min()) >= 0):
        raise ValueError("its column fps has a number out of range")


def _falls(column: Column) -> bool:
    numbers = cast("NDArray[np.int64]", column)
    return bool((numbers[1:] < numbers[:-1]).any())


def _string_column(columns: dict[str, Column], name: str) -> StringColumn:
    return StringColumn(
        cast("NDArray[np.uint8]", columns[f"{name}_blob"]),
        cast("NDArray[np.uint64]", columns[f"{name}_starts"]),
    )
