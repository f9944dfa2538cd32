"""SimpleTuner's datasets, in the multidatabackend.json that the settings refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from modules.importers import common
from modules.importers.readers import (
    address,
    boolean,
    data_path,
    data_paths,
    integer,
    items,
    number,
    text,
)
from modules.importers.rules import (
    ANY,
    Assignment,
    CombinedRule,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)
from modules.importers.simple_tuner.unsupported import IMAGES

SHORTER_SIDE: Final = "the shorter side there, here the side of a square with as many pixels"
CAPTIONS: Final[Mapping[str, object]] = {  # the defaults of those that the settings may have for all datasets
    "caption_strategy": "filename", "instance_prompt": None, "prepend_instance_prompt": False,
    "only_instance_prompt": False,
}  # fmt: skip


PLACES: Final = {  # the settings that say where the images are, by the `type` of a dataset
    "local": ("type", "instance_data_dir"),
    "aws": ("type", "aws_bucket_name", "aws_data_prefix"),
    "huggingface": ("type", "dataset_name", "revision"),
}


def _crop_style(value: object) -> object:
    styles = {"random": True, "center": False, "centre": False}
    if (name := text(value).lower()) not in styles:
        raise UnsupportedValueError("Tandem crops around the centre, or at random with crop_jitter")
    return styles[name]


def _place(values: Values) -> list[Assignment]:
    """The folder, bucket or data set of the hub."""
    if (kind := str(values["type"])) == "aws":
        prefix = str(values["aws_data_prefix"] or "").strip("/")
        found: object = address(f"s3://{text(values['aws_bucket_name'])}/{prefix}".rstrip("/"))
        return [Assignment("path", found, "read after it is copied to this machine", PLACES["aws"])]
    if kind == "huggingface":
        revision = f"@{values['revision']}" if values["revision"] else ""
        found = address(f"hf://datasets/{text(values['dataset_name'])}{revision}")
        return [Assignment("path", found, "all of it, copied to this machine and read there", PLACES["huggingface"])]
    return [Assignment("path", data_path(values["instance_data_dir"]), keys=PLACES["local"])]


def _captions(values: Values) -> list[Assignment]:
    name = str(values["caption_strategy"]).lower()
    words = text(values["instance_prompt"] or "").strip()
    if name == "instanceprompt" or boolean(values["only_instance_prompt"]):
        keys = ("caption_strategy", "only_instance_prompt", "instance_prompt")
        return [
            Assignment("caption_source", "none", keys=keys),
            Assignment("prompt_prefix", words, keys=("instance_prompt",)),
        ]
    target = {"textfile": "txt", "filename": "file_name", "huggingface": "auto"}.get(name)
    if target is None:
        raise UnsupportedValueError(common.CAPTION_FILES)
    found = [Assignment("caption_source", target, keys=("caption_strategy",))]
    if words and boolean(values["prepend_instance_prompt"]):
        named = ("prepend_instance_prompt", "instance_prompt")
        found.append(Assignment("prompt_prefix", f"{words} ", keys=named))
    return found


def resolution(values: Values) -> list[Assignment]:
    """The resolution of all images."""
    kind, size = str(values["resolution_type"]).lower(), number(values["resolution"])
    if kind == "area":
        side = round((max(size, 0.0) * 1e6) ** 0.5 / 8) * 8
        return [Assignment("resolution", side, "megapixels become the side of a square of as many pixels")]
    return [Assignment("resolution", integer(size), SHORTER_SIDE if kind == "pixel" else "")]


def _own_sizes(values: Values) -> list[Assignment]:
    """The smallest is of the shorter side only where resolution_type is pixel (helpers/metadata/backends/base.py)."""
    found, keys = [], ("minimum_image_size", "resolution_type")
    if values["resolution"] is not None:
        sizes = [replace(each, target="resolutions", value=str(each.value)) for each in resolution(values)]
        found = [replace(each, keys=("resolution", "resolution_type")) for each in sizes]
    if not values["minimum_image_size"]:
        return found
    if str(values["resolution_type"]).lower() != "pixel":
        why = "it is of the area: set min_size, which is of the shorter side"
        return [*found, Assignment("", why=why, keys=keys[:1] if found else keys)]
    return [*found, Assignment("min_size", integer(values["minimum_image_size"]), keys=keys)]


# A dataset that another names as its conditioning_data, for models that edit images.
REFERENCE_TABLE = Table(
    rules=(
        Rule(
            "instance_data_dir", "references", None,
            lambda value: data_paths(value, len(items(value)), common.WHOLE_REFERENCES), common.WHOLE_REFERENCES,
        ),
    ),
    unsupported=(
        Unsupported("id conditioning_type source_dataset_id", "says whose images they are", default=ANY),
        Unsupported("type", "Tandem reads local folders", default="local"),
        Unsupported("dataset_type", "says whose images they are", default="conditioning"),
        Unsupported("cache_dir*", "Tandem has its own cache: set cache_dir for another disk"),
        Unsupported("caption_strategy", "the captions are those of the images that come out"),
        Unsupported("resolution* *image_size target_downsample_size crop*", "set reference_resolution"),
        Unsupported("*", "Tandem's references have no such setting"),
    ),
)  # fmt: skip
BACKEND_TABLE = Table(
    rules=(
        CombinedRule(
            {
                "type": "local", "instance_data_dir": None, "aws_bucket_name": None, "aws_data_prefix": None,
                "dataset_name": None, "revision": None,
            },
            "path", _place, "type: local, aws or huggingface",
        ),
        Rule("caption_column", "caption_column", "", text, optional=True),
        Rule("id", "name", "", text, optional=True),
        Rule("disabled", "enabled", False, lambda value: not boolean(value), optional=True),
        Rule(
            "repeats", "repeats", 0, lambda value: integer(value) + 1,
            "SimpleTuner counts the passes after the first, Tandem all of them",
        ),
        CombinedRule(CAPTIONS, "caption_source, prompt_prefix", _captions),
        CombinedRule(
            {"resolution": None, "resolution_type": "pixel_area", "minimum_image_size": None}, "resolutions, min_size",
            _own_sizes, "resolutions of a dataset whose resolution is not that of the first",
        ),
        Rule("crop_style", "crop_jitter", "random", _crop_style, "of images with crop", optional=True),
        Rule("disable_multiline_split", "caption_lines", False, lambda value: "whole" if boolean(value) else "random"),
    ),
    unsupported=(
        Unsupported("dataset_type", "Tandem's concepts are images", default="image"),
        Unsupported("split", "set path to the folder with the files of that part", default="train"),
        Unsupported("metadata_backend streaming", "Tandem reads files as they lie", default=ANY),
        Unsupported("image_column", "images are in the column image, or the first that holds some", default="image"),
        Unsupported("aws_endpoint_url", "set AWS_ENDPOINT_URL in the environment"),
        Unsupported("aws_region_name", "set AWS_REGION in the environment"),
        Unsupported("aws_*", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment", secret=True),
        Unsupported("cache_dir*", "Tandem has its own cache: set cache_dir for another disk"),
        Unsupported("crop*", "Tandem groups images by aspect ratio; crop_jitter shifts the crop"),
        Unsupported("*image_size target_downsample_size", IMAGES),
        Unsupported("*", "Tandem's concepts have no such setting"),
    ),
)  # fmt: skip
