"""musubi-tuner's dataset file: [general], and [[datasets]] of images, each of which becomes a concept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modules.importers import common
from modules.importers.readers import boolean, data_path, integer, is_path, items, resolution_side, several_sides, text
from modules.importers.rules import Assignment, CombinedRule, Rule, Table, Unsupported, Values
from modules.importers.translation import Translation

FOLDER: Final = "image_directory"
VIDEOS: Final = ("video_directory", "video_jsonl_file")
_SIZE: Final = [960, 544]
# dataset/config_utils.py, load_user_config
_RENAMED: Final = {
    "flux_kontext_no_resize_control": "no_resize_control",
    "qwen_image_edit_no_resize_control": "no_resize_control",
    "qwen_image_edit_control_resolution": "control_resolution",
}


def _buckets(values: Values) -> list[Assignment]:
    """The sides of all models that Tandem has are multiples of 16 (dataset/bucket.py); without them one size."""
    is_on, keys = boolean(values["enable_bucket"]), ("enable_bucket",)
    found = [Assignment("aspect_ratio_bucketing", is_on, keys=keys)]
    if not is_on:
        return found
    is_kept = boolean(values["bucket_no_upscale"])
    return [
        *found,
        Assignment("bucket_step", 16, common.SHAPES, keys),
        Assignment("no_upscale", is_kept, common.SHAPES * is_kept, ("bucket_no_upscale",)),
    ]


_LEFT_OUT: Final = "images without such a file are left out there, and trained with an empty caption here"
# What all concepts share in Tandem: that of the first dataset is used.
SHARED_TABLE = Table(
    rules=(
        Rule("resolution", "resolution", _SIZE, resolution_side),
        Rule("batch_size", "batch_size", 1, integer),
        CombinedRule(
            {"enable_bucket": False, "bucket_no_upscale": False}, "aspect_ratio_bucketing, bucket_step, no_upscale",
            _buckets, common.SHAPES,
        ),
        Rule(
            "control_resolution", "reference_resolution", None, resolution_side, "in the nearest shape that the model "
            "knows", optional=True,
        ),
    ),
    renamed=_RENAMED,
)  # fmt: skip
CONCEPT_TABLE = Table(
    rules=(
        Rule(FOLDER, "path", None, data_path),
        Rule("num_repeats", "repeats", 1, integer),
        Rule("caption_extension", "caption_extension", None, text, _LEFT_OUT, optional=True),
        Rule("control_directory", "references", None, data_path, common.WHOLE_REFERENCES, optional=True),
        Rule("resolution", "resolutions", _SIZE, lambda value: several_sides([value]), optional=True),
    ),
    unsupported=(
        Unsupported("image_jsonl_file", "image_directory takes precedence"),
        Unsupported("cache_directory", "Tandem has its own cache: set cache_dir for another disk"),
        Unsupported("no_resize_control", "references are scaled to about reference_resolution"),
        Unsupported("multiple_target", "for models of layers, which Tandem does not have"),
        Unsupported("fp_*", "for FramePack"),
        Unsupported("debug_dataset", "the Data page shows the images"),
    ),
    renamed=_RENAMED,
)
_SHARED: Final = frozenset((*SHARED_TABLE.keys(), "qwen_image_edit_control_resolution"))


def is_dataset(value: object) -> bool:
    """Whether a value is one of musubi-tuner's datasets."""
    return isinstance(value, Mapping) and bool({FOLDER, "image_jsonl_file", *VIDEOS} & set(value))


def add_datasets(content: Mapping[str, object], translation: Translation) -> None:
    """Translate the dataset file; a dataset's own settings override those of all."""
    given = content.get("general")
    general = given if isinstance(given, Mapping) else {}
    first: Mapping[str, object] | None = None
    known = CONCEPT_TABLE.keys()
    for index, dataset in enumerate(items(content.get("datasets"))):
        prefix = f"datasets.{index}."
        if not isinstance(dataset, Mapping) or not is_path(dataset.get(FOLDER)) or set(VIDEOS) & set(dataset):
            _leave_out(dataset, prefix, translation)
            continue
        values = {**general, **dataset}
        names = {name: f"general.{name}" for name in general if name not in dataset}
        if first is None:
            first = values
            shared = {name: value for name, value in values.items() if name in _SHARED}
            translation.apply(SHARED_TABLE, shared, prefix, written_as=names)
        else:  # what no concept can have was reported with the first
            values = {name: value for name, value in values.items() if name in dataset or name in known}
        usual = _shared(first)
        for name, value in _shared({**general, **dataset}).items():
            has_effect = name != "control_resolution" or "control_directory" in values
            if name != "resolution" and value != usual[name] and has_effect:
                written = next((each for each in (*dataset, *general) if _RENAMED.get(each) == name), name)
                why = "all concepts share it: the first one is used"
                translation.skip(names.get(written, prefix + written), value, why)
        own = {name: value for name, value in values.items() if name not in _SHARED}
        if (size := values.get("resolution", _SIZE)) != first.get("resolution", _SIZE):
            own["resolution"] = size
        if own.get("multiple_target") is True:
            translation.hold("multiple_target: musubi-tuner trains a model of layers, which Tandem does not have")
        target = f"concepts.{translation.count('concepts')}."
        translation.apply(CONCEPT_TABLE, own, prefix, target, names)
        translation.put(f"{target}caption_source", "txt")
        translation.put(f"{target}caption_lines", "whole")  # dataset/datasources.py: read().strip()
        translation.put(f"{target}include_subfolders", False)
    if first is None:
        translation.apply(SHARED_TABLE, {name: value for name, value in general.items() if name in _SHARED}, "general.")
        for name in [name for name in general if name not in _SHARED]:
            translation.skip(f"general.{name}", general[name], "no images are named")


def _shared(values: Mapping[str, object]) -> dict[str, object]:
    """What a dataset has of the settings that all concepts share, with the defaults."""
    given = {_RENAMED.get(name, name): value for name, value in values.items() if name in _SHARED}
    return {**SHARED_TABLE.keys(), **given}


def _leave_out(dataset: object, prefix: str, translation: Translation) -> None:
    given = dataset if isinstance(dataset, Mapping) else {}
    reasons = dict.fromkeys(VIDEOS, f"{common.IMAGES_ONLY}: the dataset is left out")
    reasons["image_jsonl_file"] = f"give the folder of the images: {common.CAPTION_FILES}"
    for name, why in reasons.items():
        if name in given:
            translation.skip(prefix + name, given[name], why)
            return
    translation.skip(prefix[:-1], dict(given) or dataset, f"it has no {FOLDER}")
