"""What the settings expect of a data set and it does not have: each would train on other things than was meant."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from modules.config import ConfigError, TrainConfig
from modules.config.sections.concept import LIST_NAMES, METADATA_NAMES
from modules.data.index.caption_lists import MORE_CELLS, NO_CLIPS, NOT_USED
from modules.data.index.concept_summary import caption_warnings, count_of, summarize_concepts
from modules.data.index.doubtful import doubtful_images
from modules.data.index.images import suppress_pillow_warnings
from modules.data.index.index import TRANSPARENT, Index
from modules.data.index.near_duplicates import hashed_image, similar_groups
from modules.files import FileFault, printable, read_bytes

_CAPTION_SUFFIXES: Final = (".caption", ".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".tags")
_CAPTION_FOLDERS: Final = ("captions", "caption", "text", "texts")
_MOST_READ: Final = 500  # files of equal size
_LARGEST_READ: Final = 64 << 20  # bytes of each
_MOST_PIXELS: Final = 256 << 20  # of all images, if they are decoded to compare them: a few seconds
_DISTANCE: Final = 4  # of 64 bits, by which images differ that are scaled or saved anew
_THREADS: Final = 4


def missing_data(config: TrainConfig, index: Index, *, is_cached: bool) -> list[str]:
    """A sentence for each. `is_cached`: images are encoded once, instead of being decoded at each visit."""
    summaries = summarize_concepts(config.concepts, index, uses_masks=config.masked_training)
    return [
        *_captions(config, index),
        *(f"{each.path} is {each.what}." for each in index.problems() if each.what.startswith(NOT_USED)),
        *(f"{e.path}: {e.what}." for e in index.header.problems if MORE_CELLS in e.what or e.what.endswith(NO_CLIPS)),
        *(warning for summary in summaries for warning in caption_warnings(summary)),
        *_doubtful(config, index),
        *_variations(config, is_cached),
        *_held_out(config, index),
        *_seen_twice(config, index),
        *(list(_same_files(index)) or _similar_files(index)),
    ]


def check_not_empty(config: TrainConfig, index: Index) -> None:
    """Raises ConfigError if no image at all has what a setting needs."""
    if config.masked_training and not (index.mask_file[:, 0] >= 0).any():
        suffixes = ", ".join(sorted({f"NAME{concept.mask_suffix}" for concept in config.concepts}))
        transparent = int((index.transparency == TRANSPARENT).sum())
        own = f"set alpha_mask for the transparency that {transparent:,} of them have, " if transparent else ""
        raise ConfigError(
            f"masked_training is on, but none of the {len(index):,} images has a mask: {suffixes} or NAME_mask.png "
            "beside it, or NAME.png in a folder masks.",
            f"Rename the masks, set the concept's mask_suffix, {own}or switch masked_training off.",
        )
    is_test = np.array([concept.kind == "test" for concept in config.concepts])[index.concept]
    if config.validate_every and not (index.validation & ~is_test).any():
        split = f": validation_split {config.validation_split:g} of these is none" if config.validation_split else ""
        raise ConfigError(
            f"validate_every is {config.validate_every}, but none of the {len(index):,} images is held out{split}.",
            f"{'Raise' if split else 'Set'} validation_split, add a concept of kind validation, or set validate_every "
            "to never.",
        )


def _captions(config: TrainConfig, index: Index) -> Iterator[str]:
    """Concepts whose captions are the file names although other files may hold them."""
    for number, (origin, found) in enumerate(zip(index.header.origins, index.header.other_files, strict=False)):
        others = [f"{count:,} {suffix}" for suffix, count in found.items() if suffix in (*_CAPTION_SUFFIXES, ".json1")]
        rows = np.flatnonzero(index.concept == number)
        if not len(rows) or config.concepts[number].caption_source != "auto" or json.loads(origin)[0] != "file_name":
            continue
        root = Path(index.header.roots[number])
        folder = next((each for each in _CAPTION_FOLDERS if (root.parent / each).is_dir()), None)
        if folder and root.name not in _CAPTION_FOLDERS:
            others.append(f"the folder {folder} beside it (give the concept the folder that holds both)")
        names = (*METADATA_NAMES, *sorted(LIST_NAMES - {"results.csv"}))  # which is mostly of something else
        lists = (each for each in names if (root.parent / each).is_file())
        if above := next(lists, None):
            others.append(f"{above} in the folder above (give the concept that folder)")
        if others:
            example = printable(index.captions(int(rows[0]))[0], 100)
            tables = " metadata.parquet is read, with pyarrow; other .parquet files only if they hold the images."
            parquet = tables if ".parquet" in found else ""
            yield (
                f"No image in {printable(root, 200)} has a caption, so the file names are the captions, such as "
                f"{example!r}; not used: {', '.join(others)}.{parquet} docs/data.md lists what is read; "
                "caption_source=file_name says that the names are meant."
            )


def _doubtful(config: TrainConfig, index: Index) -> Iterator[str]:
    for number, concept in enumerate(config.concepts):
        root = index.header.roots[number]
        if root in index.header.roots[:number]:  # at another resolution
            continue
        first, last = np.searchsorted(index.concept, [number, number + 1]).tolist()
        yield from doubtful_images(
            concept,
            printable(root, 200),
            index.caption_place[first:last],
            index.paths.unpack(first, last),
            lambda row, first=first: index.captions(first + row),  # type: ignore[misc]
            clips=index.header.most_frames > 1,
        )


def _variations(config: TrainConfig, is_cached: bool) -> Iterator[str]:
    """Concepts whose `image_variations` does nothing, or keeps what is random from doing anything."""
    for number, concept in enumerate(config.concepts):
        count = concept.image_variations
        if not concept.enabled or concept.kind != "train" or count is None:
            continue
        if is_cached and concept.varies and count == 1:
            yield (
                f"concepts.{number}.image_variations is 1, so the cache has only the centre of each image, unchanged: "
                "crops, rotation and colours are random in vain. Leave it empty, or give 2 or more."
            )
        elif count > 1 and not (is_cached and concept.varies):
            why = "no crop, rotation or colour of it is random" if is_cached else "its images are not cached"
            yield f"concepts.{number}.image_variations is {count} and has no effect, because {why}."


def _held_out(config: TrainConfig, index: Index) -> Iterator[str]:
    trained = np.array([concept.kind == "train" for concept in config.concepts])[index.concept]
    if config.validation_split > 0 and not index.validation[trained].any():
        yield (
            f"validation_split {config.validation_split:g} holds out none of {int(trained.sum()):,} images: its share "
            "of each concept is rounded. Raise it, or add a concept of kind validation."
        )


def _seen_twice(config: TrainConfig, index: Index) -> Iterator[str]:
    """Images that two concepts share, because one's folder is or lies in that of the other."""
    real = [str(Path(root).resolve()) if root else "" for root in index.header.roots]
    pairs = [
        {number, other}
        for number, one in enumerate(real)
        for other, another in enumerate(real)
        if number != other and one and another and Path(one).is_relative_to(another)
        if one != another or config.concepts[number].resolutions == config.concepts[other].resolutions
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


def _similar_files(index: Index) -> Iterator[str]:
    """Images on both sides that look nearly the same; only where looking at all of them is cheap."""
    pixels = index.width.astype(np.int64) * index.height
    if not index.validation.any() or int(pixels.sum()) > _MOST_PIXELS:
        return
    with suppress_pillow_warnings(), ThreadPoolExecutor(_THREADS) as pool:
        found = list(zip(range(len(index)), pool.map(hashed_image, index.files()), strict=True))
    found = [(row, image) for row, image in found if image is not None and image.hash]  # 0: it has one colour
    rows, images = [row for row, _ in found], [image for _, image in found if image is not None]
    pairs = [
        (held_out[0], kept[0])
        for group in similar_groups(images, _DISTANCE)
        if (held_out := [rows[each] for each in group if index.validation[rows[each]]])
        and (kept := [rows[each] for each in group if not index.validation[rows[each]]])
        and Path(index.file(held_out[0])).resolve() != Path(index.file(kept[0])).resolve()
    ]
    if pairs:
        one, other = (printable(index.file(row), 200) for row in pairs[0])
        look = "image held out looks" if len(pairs) == 1 else "images held out look"
        yield f"{len(pairs):,} {look} nearly like one that is trained on, such as {one} and {other}."
