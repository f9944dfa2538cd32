"""The classes of a classifier: the captions of the training images, found before its network is built."""

from __future__ import annotations

import os
from collections import Counter

from modules.config import Concept, DataError, TrainConfig
from modules.config.sections.concept import METADATA_NAMES
from modules.data.index.index import Index
from modules.data.index.scan import concept_root
from modules.distributed.formatting import first_names
from modules.files.shard_paths import ARROW, PARQUET

_SHOWN = 3


def label_concepts(config: TrainConfig) -> TrainConfig:
    """The config with `caption_source` auto resolved for labels: the metadata file of a folder, else class folders."""
    return config.model_copy(update={"concepts": tuple(_labelled(concept) for concept in config.concepts)})


def with_classes(config: TrainConfig, index: Index) -> TrainConfig:
    """The config with the option `classes` that training images have, sorted, unless it gives them.

    Raises DataError if an image has no class, or one that training does not know.
    """
    given = config.family_options.get("classes")
    labels = [index.captions(row) for row in range(len(index))]
    _check_labels(index, labels)
    training = Counter(names[0] for row, names in enumerate(labels) if not index.validation[row])
    classes = [name.strip() for name in str(given).split("\n") if name.strip()] if given else sorted(training)
    known = set(classes)
    unknown = [row for row, names in enumerate(labels) if names[0] not in known]
    if unknown:
        names = [repr(name) for name in sorted({labels[row][0] for row in unknown})]
        origin = "family_options.classes does not list" if given else "no training image has"
        raise DataError(
            f"{_count(len(unknown), 'image')} of classes that {origin}: {first_names(names, _SHOWN)}, such as "
            f"{index.file(unknown[0])!r}.",
            "Name the classes alike in all folders.",
        )
    if len(classes) < 2:
        raise DataError(
            f"There is only one class, {classes[0]!r}, so nothing can be learned.",
            "Put the images of each class into a folder of its own.",
        )
    if len(training) > 2 and max(training.values()) == 1:
        raise DataError(
            f"Each of the {len(training)} training images has a class of its own, such as {classes[0]!r}.",
            "Put the images of each class into a folder of its own, and set caption_source to folder_name.",
        )
    return config.model_copy(update={"family_options": {**config.family_options, "classes": "\n".join(classes)}})


def _labelled(concept: Concept) -> Concept:
    if concept.caption_source != "auto":
        return concept
    root = concept_root(concept)
    files = os.listdir(root) if os.path.isdir(root) else [root]
    has_metadata = any(name in METADATA_NAMES or name.lower().endswith((ARROW, PARQUET)) for name in files)
    return concept.model_copy(update={"caption_source": "label" if has_metadata else "folder_name"})


def _check_labels(index: Index, labels: list[tuple[str, ...]]) -> None:
    wrong = [row for row, names in enumerate(labels) if len(names) > 1 or not names[0]]
    if not wrong:
        return
    what = "no class" if not labels[wrong[0]][0] else f"{len(labels[wrong[0]])} classes"
    raise DataError(
        f"{_count(len(wrong), 'image')} without exactly one class, such as {index.file(wrong[0])!r}, which has {what}.",
        "Put the images of each class into a folder of its own (caption_source folder_name), or give each a `label` in "
        "metadata.csv or metadata.jsonl (caption_source label).",
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
