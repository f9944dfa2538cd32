"""What the settings expect of a data set and it does not have: each would train on other things than was meant."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from modules.config import TrainConfig
from modules.data.index.index import Index
from modules.files import printable

CAPTION_SUFFIXES: Final = (".caption", ".txt", ".json", ".jsonl", ".csv", ".parquet", ".tags")
_MASK_FOLDERS: Final = frozenset({"mask", "masks", "conditioning"})
_MASK_ENDS: Final = ("_mask", "-mask", "_masklabel", "-masklabel")


def missing_data(config: TrainConfig, index: Index) -> list[str]:
    """A sentence for each."""
    return [*_masks(config, index), *_captions(config, index), *_held_out(config, index), *_seen_twice(index)]


def _masks(config: TrainConfig, index: Index) -> Iterator[str]:
    if not config.masked_training or (index.mask_file[:, 0] >= 0).any():
        return
    suffixes = ", ".join(sorted({f"NAME{concept.mask_suffix}" for concept in config.concepts}))
    paths = (index.relative_path(row) for row in range(len(index)))
    alike = [path for path in paths if _looks_like_mask(path)]
    look = "looks like a mask:" if len(alike) == 1 else "look like masks, such as"
    some = f" {len(alike):,} of them {look} {printable(alike[0], 200)}." if alike else ""
    yield (
        f"masked_training is on, but none of the {len(index):,} images has a mask beside it ({suffixes}), so all are "
        f"trained whole.{some} Rename the masks, or set the concept's mask_suffix."
    )


def _looks_like_mask(path: str) -> bool:
    folder, name = posixpath.split(path)
    return posixpath.basename(folder).lower() in _MASK_FOLDERS or Path(name).stem.lower().endswith(_MASK_ENDS)


def _captions(config: TrainConfig, index: Index) -> Iterator[str]:
    """Concepts whose captions are the file names although other files may hold them."""
    for number, (origin, found) in enumerate(zip(index.header.origins, index.header.other_files, strict=False)):
        others = [f"{count:,} {suffix}" for suffix, count in found.items() if suffix in CAPTION_SUFFIXES]
        rows = np.flatnonzero(index.concept == number)
        if not others or not len(rows) or config.concepts[number].caption_source != "auto":
            continue
        if json.loads(origin)[0] == "file_name":
            example = printable(index.captions(int(rows[0]))[0], 100)
            yield (
                f"No image in {printable(index.header.roots[number], 200)} has a caption file, so the file names are "
                f"the captions, such as {example!r}; other files there are not read: {', '.join(others)}. A caption "
                "file has its image's name with the concept's caption_extension; caption_source=file_name says that "
                "this is meant."
            )


def _held_out(config: TrainConfig, index: Index) -> Iterator[str]:
    trained = np.array([concept.kind == "train" for concept in config.concepts])[index.concept]
    splits = config.validation_split > 0 and not index.validation[trained].any()
    effect = "" if index.validation.any() or not config.validate_every else " No image is validated on."
    if splits:
        yield (
            f"validation_split {config.validation_split:g} holds out none of {int(trained.sum()):,} images: each is "
            f"drawn by itself.{effect} Raise it, or add a concept of kind validation."
        )
    elif effect:
        yield "validate_every: no image is held out. Set validation_split, or add a concept of kind validation."


def _seen_twice(index: Index) -> Iterator[str]:
    """Images that are both trained on and held out, by two concepts that share a folder."""
    real = [str(Path(root).resolve()) if root else "" for root in index.header.roots]
    pairs = [
        {number, other}
        for number, one in enumerate(real)
        for other, another in enumerate(real)
        if number != other and one and another and Path(one).is_relative_to(another)
    ]
    sharing = set[int]().union(*pairs)
    rows = np.flatnonzero(np.isin(index.concept, sorted(sharing)))
    if not len(rows) or index.validation[rows].all() or not index.validation[rows].any():
        return
    places: tuple[set[str], set[str]] = (set(), set())  # of those that are trained on, and of those held out
    for row in rows.tolist():
        place = os.path.normpath(os.path.join(real[index.concept[row]], index.relative_path(row)))
        places[int(index.validation[row])].add(place)
    both = sorted(places[0] & places[1])
    if both:
        yield (
            f"{'1 image is' if len(both) == 1 else f'{len(both):,} images are'} trained on and held out, such as "
            f"{printable(both[0], 300)}: two concepts share a folder, so validation says nothing about images that are "
            "new to the model."
        )
