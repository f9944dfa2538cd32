"""Concepts that stand for several: a folder of kohya's folders `10_words`, whose images come 10 times per epoch, and
one with several resolutions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from modules.config import Concept, TrainConfig
from modules.config.sections.concept import IMAGE_SUFFIXES, LIST_NAMES, METADATA_NAMES, METADATA_SUFFIXES
from modules.data.index.references import reference_roots
from modules.data.index.scan import concept_root
from modules.data.rng import hash_bytes
from modules.facts import all_facts
from modules.files import FileFault, is_shard
from modules.files.shard_paths import ARROW, is_archive
from modules.files.shards import shard_table

KOHYA_FOLDER: Final = re.compile(r"([1-9]\d{0,2})_(.+)", re.DOTALL)  # 2023_holiday is no number of repeats
_CLASSES: Final = ("label", "folder_name")  # captions that need the whole folder, or its name
_LISTS: Final = frozenset({*LIST_NAMES, *METADATA_NAMES})
_TEXTS: Final = frozenset({".txt", ".caption", ".json", ".tsv", *METADATA_SUFFIXES, ARROW})  # tables of images, too


def expand_concepts(config: TrainConfig) -> TrainConfig:
    """The config with each concept as `parts`; of one that learns classes, its folders may be these."""
    facts = all_facts().get(config.family)
    classes = facts is not None and facts.learns_classes
    expanded = [
        (number, concept, part)
        for number, concept in enumerate(config.concepts)
        for part in parts(concept, classes=classes)
    ]
    if all(part is concept for _, concept, part in expanded):
        return config
    keyed = tuple(
        part.known_as(number if part is concept else _key(number, part)) for number, concept, part in expanded
    )
    return config.model_copy(update={"concepts": keyed})


def _key(number: int, part: Concept) -> int:
    """Of a part of the concept with this number: other folders that come or go do not change it."""
    return hash_bytes(os.fsencode(f"{number}/{os.path.basename(part.path)}/{part.resolutions}"))


def parts(concept: Concept, *, classes: bool = False) -> tuple[Concept, ...]:
    """The concept, or one for each of its folders, unless they may be `classes`, and resolutions."""
    folders = (concept,) if classes else _folders(concept)
    if len(concept.resolution_list) < 2:
        return folders
    sizes = [(each, {"resolutions": str(size)}) for size in concept.resolution_list for each in folders]
    return tuple(
        each.model_copy(update={**changes, "name": f"{each.name or each.path} at {changes['resolutions']}"})
        for each, changes in sizes
    )


def _folders(concept: Concept) -> tuple[Concept, ...]:
    """The concept, or one for each folder `10_words` if its folder holds images, and texts, in such folders alone.

    Images without any text beside them get the words as their caption, as in kohya's sd-scripts.
    """
    if not (concept.folder_repeats and may_repeat(concept) and concept.enabled):
        return (concept,)
    root = concept_root(concept)
    try:
        own = [name for name in _folders_with_images(root) if not _is_of_references(os.path.join(root, name), concept)]
        found = [(name, KOHYA_FOLDER.fullmatch(name)) for name in own]
    except OSError:  # which the scan explains
        return (concept,)
    numbered = [(name, match) for name, match in found if match is not None]
    if not numbered or len(numbered) < len(found):
        return (concept,)
    return tuple(_part(concept, os.path.join(root, name), int(match[1]), match[2]) for name, match in numbered)


def _is_of_references(folder: str, concept: Concept) -> bool:
    return any(os.path.exists(each) and os.path.samefile(folder, each) for each in reference_roots(concept))


def may_repeat(concept: Concept) -> bool:
    """Whether numbers in the names of its folders could count."""
    return concept.include_subfolders and concept.caption_source not in _CLASSES


def _part(concept: Concept, folder: str, repeats: int, words: str) -> Concept:
    name = f"{concept.name or Path(concept.path).name}/{os.path.basename(folder)}"
    changes: dict[str, object] = {"path": folder, "name": name, "repeats": concept.repeats * repeats}
    if concept.references:
        below = ((root, os.path.join(root, os.path.basename(folder))) for root in reference_roots(concept))
        changes["references"] = "; ".join(own if os.path.isdir(own) else root for root, own in below)
    texts = {*_TEXTS, *(_suffix(f"x{each}") for each in concept.caption_extensions)}
    if concept.caption_source == "auto" and not any(_suffix(file) in texts for file in _files(folder)):
        changes |= {"caption_source": "none", "prompt_prefix": f"{concept.prompt_prefix}{words}"}
    return concept.model_copy(update=changes)


def _folders_with_images(root: str) -> Iterator[str]:
    """The folders in `root` with files anywhere below that may be images or captions, in order; "" for such in itself.

    Raises OSError.
    """
    there = [name for name in os.listdir(root) if not name.startswith(".")]
    # The scan does not read an archive beside the folder it was unpacked to.
    names = sorted(name for name in there if not (is_shard(name) and os.path.splitext(name)[0] in there))
    if any((_is_image(name) or name in _LISTS) and not os.path.isdir(os.path.join(root, name)) for name in names):
        yield ""
    for name in names:
        files = _files(folder) if os.path.isdir(folder := os.path.join(root, name)) else ()
        if any(_is_image(file) or _suffix(file) in _TEXTS for file in files):
            yield name


def _is_image(name: str) -> bool:
    """Whether it may be one, as a file without a suffix may, or hold some."""
    return _suffix(name) in {"", *IMAGE_SUFFIXES} or is_shard(name)


def _files(folder: str) -> Iterator[str]:
    """The names of all files and links below, and of those in the archives that the scan reads."""
    for top, folders, files in os.walk(folder):
        yield from files
        yield from (each for each in folders if os.path.islink(os.path.join(top, each)))
        archives = [name for name in files if is_archive(name)]
        if archives and not any(_suffix(name) in IMAGE_SUFFIXES for name in files):
            for name in archives:
                if os.path.splitext(name)[0] not in (*folders, *files):
                    with suppress(OSError, FileFault):  # which the scan explains
                        yield from map(os.fsdecode, shard_table(os.path.join(top, name)))


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()
