"""The classes of a classifier: the captions of the training images, found before its network is built."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from itertools import islice

from modules.config import Concept, DataError, TrainConfig
from modules.config.sections.concept import IMAGE_SUFFIXES, LABEL_SUFFIX, METADATA_NAMES
from modules.data.index.caption_lists import LABEL_KEYS
from modules.data.index.index import Index
from modules.data.index.scan import concept_root
from modules.distributed.formatting import first_names
from modules.files import FileFault, decode_json, is_shard, read_bytes
from modules.files.shard_paths import is_archive
from modules.files.shards import shard_table

_SHOWN = 3
_LOOKED = 100  # folders of a concept that show how it gives its classes
_PROBED = 20  # NAME.json, in folders or in an archive
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
    source = "label" if _has_labels(concept_root(concept), deeper=concept.include_subfolders) else "folder_name"
    return concept.model_copy(update={"caption_source": source})


def _has_labels(root: str, *, deeper: bool) -> bool:
    """Whether a concept gives its classes by lists in its folder, tables, NAME.cls or NAME.json, in archives, too."""
    if not os.path.isdir(root):
        return _shard_has_labels(root)
    probed = 0
    for top, folders, files in islice(os.walk(root, followlinks=True), _LOOKED if deeper else 1):
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # as every rank has it
        names = sorted(name for name in files if not name.startswith("."))
        if top == root and not set(METADATA_NAMES).isdisjoint(names):
            return True
        records = _records(names)[: _PROBED - probed]
        probed += len(records)
        if any(name.lower().endswith(LABEL_SUFFIX) for name in names) or _any_label(top, records):
            return True
        shards = () if any(map(_is_image, names)) else filter(is_shard, names)  # none beside images is read
        if any(_shard_has_labels(os.path.join(top, name)) for name in shards):
            return True
    return False


def _shard_has_labels(path: str) -> bool:
    """Whether it is a table, or an archive that has some."""
    if not is_archive(path):
        return True
    try:
        names = [os.fsdecode(name) for name in shard_table(path)]
    except (OSError, FileFault):  # which the scan explains
        return False
    return any(name.lower().endswith(LABEL_SUFFIX) for name in names) or _any_label(path, _records(names)[:_PROBED])


def _records(names: list[str]) -> list[str]:
    """Those of images, NAME.json or NAME.jpg.json."""
    images = set(filter(_is_image, names))
    images |= {os.path.splitext(name)[0] for name in images}
    return [name for name in names if name.lower().endswith(".json") and name[: -len(".json")] in images]


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _any_label(folder: str, records: list[str]) -> bool:
    for name in records:
        with suppress(OSError, FileFault):
            record = decode_json(read_bytes(os.path.join(folder, name), _MAX_RECORD), only_finite=False)
            if isinstance(record, dict) and not record.keys().isdisjoint(LABEL_KEYS):
                return True
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
