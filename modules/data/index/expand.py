"""Concepts that stand for several: a folder of kohya's folders `10_words`, whose images come 10 times per epoch, and
one with several resolutions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from modules.config import Concept, TrainConfig
from modules.config.sections.concept import IMAGE_SUFFIXES, METADATA_SUFFIXES
from modules.data.index.scan import concept_root
from modules.facts import all_facts

KOHYA_FOLDER: Final = re.compile(r"([1-9]\d{0,2})_(.+)", re.DOTALL)  # 2023_holiday is no number of repeats
_CLASSES: Final = ("label", "folder_name")  # captions that need the whole folder, or its name
_TEXTS: Final = frozenset({".txt", ".caption", ".json", ".tsv", *METADATA_SUFFIXES})


def expand_concepts(config: TrainConfig) -> TrainConfig:
    """The config with each concept as `parts`, unless its folders are classes."""
    facts = all_facts().get(config.family)
    if facts is not None and facts.learns_classes:
        return config
    return config.model_copy(update={"concepts": tuple(part for each in config.concepts for part in parts(each))})


def parts(concept: Concept) -> tuple[Concept, ...]:
    """The concept, or one for each of its folders and resolutions."""
    if len(concept.resolution_list) < 2:
        return _folders(concept)
    sizes = [(each, {"resolutions": str(size)}) for size in concept.resolution_list for each in _folders(concept)]
    return tuple(
        each.model_copy(update={**changes, "name": f"{each.name or each.path} at {changes['resolutions']}"})
        for each, changes in sizes
    )


def _folders(concept: Concept) -> tuple[Concept, ...]:
    """The concept, or one for each folder `10_words` if its folder holds images in such folders alone.

    Images without any text beside them get the words as their caption, as in kohya's sd-scripts.
    """
    if not reads_repeats(concept):
        return (concept,)
    root = concept_root(concept)
    found = [(name, KOHYA_FOLDER.fullmatch(name)) for name in _folders_with_images(root)]
    numbered = [(name, match) for name, match in found if match is not None]
    if not numbered or len(numbered) < len(found):
        return (concept,)
    return tuple(_part(concept, os.path.join(root, name), int(match[1]), match[2]) for name, match in numbered)


def reads_repeats(concept: Concept) -> bool:
    """Whether numbers in the names of its folders may count."""
    return concept.folder_repeats and concept.include_subfolders and concept.caption_source not in _CLASSES


def _part(concept: Concept, folder: str, repeats: int, words: str) -> Concept:
    name = f"{concept.name or Path(concept.path).name}/{os.path.basename(folder)}"
    changes: dict[str, object] = {"path": folder, "name": name, "repeats": concept.repeats * repeats}
    if concept.caption_source == "auto" and not any(_suffix(file) in _TEXTS for file in _files(folder)):
        changes |= {"caption_source": "none", "prompt_prefix": f"{concept.prompt_prefix}{words}"}
    return concept.model_copy(update=changes)


def _folders_with_images(root: str) -> Iterator[str]:
    """The folders in `root` with images anywhere below, in order; "" for images in itself."""
    if not os.path.isdir(root):
        return
    with os.scandir(root) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))

    if any(_suffix(file) in IMAGE_SUFFIXES and os.path.isfile(os.path.join(root, file)) for file in os.listdir(root)):
        yield ""
    for name in folders:
        if any(_suffix(file) in IMAGE_SUFFIXES for file in _files(os.path.join(root, name))):
            yield name


def _files(folder: str) -> Iterator[str]:
    """The names of all files below."""
    for _, _, files in os.walk(folder):
        yield from files


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()
