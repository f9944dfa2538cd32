"""SimpleTuner's datasets, in the multidatabackend.json that the settings refer to."""

from __future__ import annotations

from typing import Final

from modules.importers import common
from modules.importers.readers import (
    boolean,
    data_path,
    integer,
    text,
)
from modules.importers.rules import (
    Assignment,
    CombinedRule,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)
from modules.importers.simple_tuner.unsupported import IMAGES

CROP_STYLE: Final = "Tandem crops around the centre: set crop_jitter to shift the crop"


def _captions(values: Values) -> list[Assignment]:
    name = str(values["caption_strategy"]).lower()
    words = text(values["instance_prompt"] or "").strip()
    if name == "instanceprompt" or boolean(values["only_instance_prompt"]):
        keys = ("caption_strategy", "only_instance_prompt", "instance_prompt")
        return [
            Assignment("caption_source", "none", keys=keys),
            Assignment("prompt_prefix", words, keys=("instance_prompt",)),
        ]
    target = {"textfile": "txt", "filename": "file_name"}.get(name)
    if target is None:
        raise UnsupportedValueError(common.CAPTION_FILES)
    found = [Assignment("caption_source", target, keys=("caption_strategy",))]
    if words and boolean(values["prepend_instance_prompt"]):
        named = ("prepend_instance_prompt", "instance_prompt")
        found.append(Assignment("prompt_prefix", f"{words} ", keys=named))
    return found


BACKEND_TABLE = Table(
    rules=(
        Rule("instance_data_dir", "path", None, data_path),
        Rule("id", "name", "", text, optional=True),
        Rule("disabled", "enabled", False, lambda value: not boolean(value), optional=True),
        Rule(
            "repeats", "repeats", 0, lambda value: integer(value) + 1,
            "SimpleTuner counts the passes after the first, Tandem all of them",
        ),
        CombinedRule(
            {
                "caption_strategy": "filename", "instance_prompt": None, "prepend_instance_prompt": False,
                "only_instance_prompt": False,
            },
            "caption_source, prompt_prefix", _captions,
        ),
        Rule("disable_multiline_split", "caption_lines", False, lambda value: "whole" if boolean(value) else "random"),
    ),
    unsupported=(
        Unsupported("type", "Tandem reads local folders", default="local"),
        Unsupported("dataset_type", "Tandem's concepts are images", default="image"),
        Unsupported("cache_dir*", "Tandem has its own cache: set cache_dir for another disk"),
        Unsupported("crop_style", CROP_STYLE, default="center"),
        Unsupported("crop*", "Tandem groups images by aspect ratio; crop_jitter shifts the crop"),
        Unsupported("resolution*", "all concepts share one resolution"),
        Unsupported("*image_size target_downsample_size", IMAGES),
        Unsupported("aws_*", "Tandem reads local folders", secret=True),
        Unsupported("*", "Tandem's concepts have no such setting"),
    ),
)  # fmt: skip
