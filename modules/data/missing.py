"""What the settings expect of a data set and it does not have: each would train on other things than was meant."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from modules.config import TrainConfig
from modules.data.index.concept_summary import caption_warnings, count_of, summarize_concepts
from modules.data.index.index import Index
from modules.files import FileFault, printable, read_bytes

_CAPTION_SUFFIXES: Final = (".caption", ".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".tags")
_CAPTION_FOLDERS: Final = ("captions", "caption", "text", "texts")
_MOST_READ: Final = 500  # files of equal size
_LARGEST_READ: Final = 64 << 20  # bytes of each


def missing_data(config: TrainConfig, index: Index) -> list[str]:
    """A sentence for each."""
    summaries = summarize_concepts(config.concepts, index, uses_masks=config.masked_training)
    return [
        *_masks(config, index),
        *_captions(config, index),
        *(warning for summary in summaries for warning in caption_warnings(summary)),
        *_held_out(config, index),
        *_seen_twice(index),
        *_same_files(index),
    ]


def _masks(config: TrainConfig, index: Index) -> Iterator[str]:
    if not config.masked_training or (index.mask_file[:, 0] >= 0).any():
        return
    suffixes = ", ".join(sorted({f"NAME{concept.mask_suffix}" for concept in config.concepts}))
    yield (
        f"masked_training is on, but none of the {len(index):,} images has a mask: {suffixes} or NAME_mask.png beside "
        "it, or NAME.png in a folder masks. All are trained whole. Rename the masks, or set the concept's mask_suffix."
    )


def _captions(config: TrainConfig, index: Index) -> Iterator[str]:
    """Concepts whose captions are the file names although other files may hold them."""
    for number, (origin, found) in enumerate(zip(index.header.origins, index.header.other_files, strict=False)):
        others = [f"{count:,} {suffix}" for suffix, count in found.items() if suffix in _CAPTION_SUFFIXES]
        rows = np.flatnonzero(index.concept == number)
        if not len(rows) or config.concepts[number].caption_source != "auto" or json.loads(origin)[0] != "file_name":
            continue
        root = Path(index.header.roots[number])
        folder = next((each for each in _CAPTION_FOLDERS if (root.parent / each).is_dir()), None)
        if folder and root.name not in _CAPTION_FOLDERS:
            others.append(f"the folder {folder} beside it (give the concept the folder that holds both)")
        if others:
            example = printable(index.captions(int(rows[0]))[0], 100)
            parquet = " Parquet is not read: Tandem does without pyarrow; write metadata.jsonl." * (".parquet" in found)
            yield (
                f"No image in {printable(root, 200)} has a caption, so the file names are the captions, such as "
                f"{example!r}; not used: {', '.join(others)}.{parquet} docs/data.md lists what is read; "
                "caption_source=file_name says that the names are meant."
            )


def _held_out(config: TrainConfig, index: Index) -> Iterator[str]:
    trained = np.array([concept.kind == "train" for concept in config.concepts])[index.concept]
    splits = config.validation_split > 0 and not index.validation[trained].any()
    effect = "" if index.validation.any() or not config.validate_every else " No image is validated on."
    if splits:
        yield (
            f"validation_split {config.validation_split:g} holds out none of {int(trained.sum()):,} images: its share "
            f"of each concept is rounded.{effect} Raise it, or add a concept of kind validation."
        )
    elif effect:
        yield "validate_every: no image is held out. Set validation_split, or add a concept of kind validation."


def _seen_twice(index: Index) -> Iterator[str]:
    """Images that two concepts share, because one's folder is or lies in that of the other."""
    real = [str(Path(root).resolve()) if root else "" for root in index.header.roots]
    pairs = [
        {number, other}
        for number, one in enumerate(real)
        for other, another in enumerate(real)
        if number != other and one and another and Path(one).is_relative_to(another)
    ]
    uses: dict[str, list[bool]] = {}  # of each place: whether it is held out, once for each concept
    for row in np.flatnonzero(np.isin(index.concept, sorted(set[int]().union(*pairs)))).tolist():
        place = os.path.normpath(os.path.join(real[index.concept[row]], index.relative_path(row)))
        uses.setdefault(place, []).append(bool(index.validation[row]))
    both = sorted(place for place, held_out in uses.items() if len(set(held_out)) > 1)
    if both:
        yield (
            f"{'1 image is' if len(both) == 1 else f'{len(both):,} images are'} trained on and held out, such as "
            f"{printable(both[0], 300)}: two concepts share a folder, so validation says nothing about images that are "
            "new to the model."
        )
    twice = sorted(place for place, held_out in uses.items() if held_out.count(False) > 1)
    if twice:
        yield (
            f"{'1 image is' if len(twice) == 1 else f'{len(twice):,} images are'} in two concepts and trained on with "
            f"both, such as {printable(twice[0], 300)}."
        )


def _same_files(index: Index) -> Iterator[str]:
    """Files with the same bytes on both sides; only such of equal size are read, and not too many."""
    trained = set(index.size[~index.validation].tolist())
    sizes = {size for size in set(index.size[index.validation].tolist()) & trained if size <= _LARGEST_READ}
    rows = np.flatnonzero(np.isin(index.size, sorted(sizes)))
    order = rows[np.lexsort((rows, index.size[rows]))].tolist()
    hashes: dict[bytes, list[int]] = {}
    for row in order[:_MOST_READ]:
        try:
            content = read_bytes(index.file(row), _LARGEST_READ)
        except (OSError, FileFault):
            continue
        hashes.setdefault(hashlib.sha256(content).digest(), []).append(row)
    pairs = [
        (held_out[0], kept[0])
        for same in hashes.values()
        if (held_out := [row for row in same if index.validation[row]])
        and (kept := [row for row in same if not index.validation[row]])
        and Path(index.file(held_out[0])).resolve() != Path(index.file(kept[0])).resolve()
    ]
    if pairs:
        one, other = (printable(index.file(row), 200) for row in pairs[0])
        looked = f" (of {_MOST_READ} files of equal size that were compared)" * (len(order) > _MOST_READ)
        yield (
            f"{count_of(len(pairs), 'image')} held out {'is' if len(pairs) == 1 else 'are'} also among those that are "
            f"trained on, as another file with the same bytes{looked}, such as {one} and {other}."
        )
