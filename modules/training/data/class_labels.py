"""The classes of a classifier: the captions of the training images, found before its network is built."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from modules.config import Concept, DataError, TrainConfig
from modules.config.sections.concept import LABEL_SUFFIX, METADATA_NAMES
from modules.data.index.caption_lists import LABEL_KEYS
from modules.data.index.index import Index
from modules.data.index.scan import concept_root
from modules.distributed.formatting import first_names
from modules.files import FileFault, decode_json, read_bytes
from modules.files.shard_paths import SHARD_SUFFIXES, is_archive
from modules.files.shards import shard_table

_SHOWN = 3
_LOOKED = 100  # folders of a concept that show how it gives its classes
_PROBED = 20  # NAME.json in an archive
_MAX_RECORD = 1 << 20  # bytes


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
    has_labels = any(_has_label(file) for file in _files(root, deeper=concept.include_subfolders))
    return concept.model_copy(update={"caption_source": "label" if has_labels else "folder_name"})


def _files(root: str, *, deeper: bool) -> Iterator[str]:
    """The files that may show how a concept gives its classes: lists in its folder, archives, tables and labels."""
    if not os.path.isdir(root):
        yield root
    for top, folders, files in islice(os.walk(root), _LOOKED if deeper else 1):
        folders.sort()  # as every rank has it
        for name in sorted(files):
            if name.lower().endswith((*SHARD_SUFFIXES, LABEL_SUFFIX)) or (top == root and name in METADATA_NAMES):
                yield os.path.join(top, name)


def _has_label(file: str) -> bool:
    """Whether a file is a label or a list of them, or an archive that has some."""
    if not is_archive(file):
        return True
    try:
        names = [os.fsdecode(name) for name in shard_table(file)]
        if any(name.lower().endswith(LABEL_SUFFIX) for name in names):
            return True
        for name in islice((name for name in names if name.lower().endswith(".json")), _PROBED):
            record = decode_json(read_bytes(os.path.join(file, name), _MAX_RECORD), only_finite=False)
            if isinstance(record, dict) and not record.keys().isdisjoint(LABEL_KEYS):
                return True
    except (OSError, FileFault):  # which the scan explains
        return False
    return False


def _check_labels(index: Index, labels: list[tuple[str, ...]]) -> None:
    wrong = [row for row, names in enumerate(labels) if len(names) > 1 or not names[0]]
    if not wrong:
        return
    what = "no class" if not labels[wrong[0]][0] else f"{len(labels[wrong[0]])} classes"
    raise DataError(
        f"{_count(len(wrong), 'image')} without exactly one class, such as {index.file(wrong[0])!r}, which has {what}.",
        "Put the images of each class into a folder of its own (caption_source folder_name), or give each a `label` in "
        "metadata.csv or metadata.jsonl, or in NAME.json or NAME.cls beside it (caption_source label).",
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
