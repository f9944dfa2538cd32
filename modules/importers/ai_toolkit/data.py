"""ai-toolkit's datasets and samples. Names and defaults as in its toolkit/config_modules.py."""

from __future__ import annotations

from modules.importers import common
from modules.importers.readers import boolean, data_path, integer, items, number, text
from modules.importers.rules import (
    ANY,
    EMPTY_VALUES,
    Assignment,
    ChangedValue,
    CombinedRule,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)

_NETWORK_WEIGHT = "with a network_weight the loss is weighted, not the LoRA"
_DATA = "not supported; prepare the images beforehand"


def _side(value: object) -> object:
    sizes = [integer(item) for item in items(value)]
    if not sizes:
        raise UnsupportedValueError("no size is given")
    if len(sizes) > 1:
        return ChangedValue(max(sizes), f"Tandem trains at one resolution, the largest of {sizes}, not at each of them")
    return sizes[0]


def _caption_extension(value: object) -> object:
    """ai-toolkit adds a missing dot (toolkit/config_modules.py, DatasetConfig)."""
    extension = f".{text(value or 'txt').strip().lstrip('.')}"
    if extension == ".json":
        raise UnsupportedValueError(common.CAPTION_FILES)
    return extension


def _weight(values: Values) -> list[Assignment]:
    weight = number(values["network_weight"])
    why = _NETWORK_WEIGHT if weight != 1 else ""
    return [Assignment("loss_weight", weight * number(values["loss_multiplier"]), why)]


def _folder(value: object) -> object:
    if len(folders := items(value)) != 1:
        raise UnsupportedValueError("set references to these folders, separated by ;")
    return data_path(folders[0])


DATASET_TABLE = Table(
    rules=(
        Rule("folder_path", "path", None, data_path),
        Rule("num_repeats", "repeats", 1, integer),
        Rule("caption_ext", "caption_extension", ".txt", _caption_extension),
        Rule("is_reg", "prior", False, boolean, "an epoch shows as many of them as of all other images", optional=True),
        CombinedRule({"network_weight": 1.0, "loss_multiplier": 1.0}, "loss_weight", _weight, _NETWORK_WEIGHT),
        Rule("shuffle_tokens", "tag_shuffle", False, boolean),
        Rule("token_dropout_rate", "tag_dropout", 0.0, number),
        Rule("keep_tokens", "keep_tags", 0, integer),
        Rule("flip_x", "horizontal_flip", False, boolean),
        Rule("random_crop", "crop_jitter", False, boolean),
    ),
    unsupported=(
        Unsupported("dataset_path", "give a folder"),
        Unsupported("type", common.IMAGES_ONLY, default="image"),
        Unsupported("caption_type", "set by caption_ext", default="txt"),
        Unsupported("default_caption", "set prompt_prefix"),
        Unsupported("cache_text_embeddings", "Tandem does so automatically if no text encoder is trained"),
        Unsupported("mask_path alpha_mask", common.MASKS),
        Unsupported("mask_min_value", "set unmasked_weight"),
        Unsupported("scale", _DATA, default=1.0),
        Unsupported("bucket_tolerance", common.BUCKETS, default=64),
        Unsupported("standardize_images", _DATA),
        Unsupported("num_frames", common.IMAGES_ONLY, default=1),
        Unsupported("fps", common.IMAGES_ONLY, default=16),
        Unsupported("shrink_video_to_frames do_i2v", common.IMAGES_ONLY, default=True),
        Unsupported("full_size_control_images replay_transforms", _DATA, default=True),
        Unsupported("num_workers prefetch_factor", "set loader_workers and prefetch_factor", default=2),
        Unsupported("trigger_word", "set prompt_prefix if this folder is to have its own"),
        Unsupported("*", _DATA),
    ),
)

# Of models that edit images.
CONTROL_TABLE = Table(rules=(Rule("control_path", "references", "", _folder),))

# Settings that all concepts share in Tandem: those of the first dataset are used.
FIRST_TABLE = Table(
    rules=(
        Rule("resolution", "resolution", 512, _side),
        Rule("caption_dropout_rate", "caption_dropout", 0.0, number, "all concepts share one probability"),
        Rule("buckets", "aspect_ratio_bucketing", True, boolean),
        common.LATENTS,
    )
)

FIRST_NAMES = frozenset(FIRST_TABLE.keys())

SAMPLE_TABLE = Table(
    rules=(
        Rule("prompt", "prompt", "", text),
        Rule("neg", "negative_prompt", "", lambda value: "" if value in EMPTY_VALUES else text(value)),
        Rule("width", "width", 512, integer),
        Rule("height", "height", 512, integer),
        Rule("sample_steps", "steps", 20, integer),
        Rule("guidance_scale", "guidance_scale", 7.0, number),
        Rule("seed", "seed", 0, integer),
    ),
    unsupported=(
        Unsupported("sampler", "family_options.sample_scheduler: the base model's own is used", default="ddpm"),
        Unsupported("sample_start_step", common.FIRST_SAMPLES, default=0),
        Unsupported("network_multiplier", "samples use the full LoRA", default=1),
        Unsupported("guidance_rescale", "Tandem has plain guidance", default=0.0),
        Unsupported("fps", common.IMAGES_ONLY, default=16),
        Unsupported("num_frames", common.IMAGES_ONLY, default=1),
        Unsupported("walk_seed", "the seeds are incremented", default=ANY),
        Unsupported("format ext", "samples are PNG files with their settings as metadata", default="jpg"),
        Unsupported("*", "Tandem's samples have no such setting"),
    ),
)
