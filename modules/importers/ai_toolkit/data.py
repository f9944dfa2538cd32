"""ai-toolkit's datasets and samples. Names and defaults as in its toolkit/config_modules.py."""

from __future__ import annotations

from modules.facts import ClipFacts
from modules.importers import common
from modules.importers.flow_rules import PATH
from modules.importers.readers import boolean, data_path, data_paths, integer, items, number, several_sides, text
from modules.importers.rules import (
    ANY,
    EMPTY_VALUES,
    Assignment,
    CombinedRule,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)

NUMBERED = 3  # control_path_1 to control_path_3, and so for the images of a sample
_NETWORK_WEIGHT = "with a network_weight the loss is weighted, not the LoRA"
_GIVEN = "the first frame of all clips, or of none"
_FRAMES = "spread over the whole video there unless shrink_video_to_frames is false, and at fps from its beginning here"
_DATA = "not supported; prepare the images beforehand"


def _side(value: object) -> object:
    sizes = [integer(item) for item in items(value)]
    if not sizes:
        raise UnsupportedValueError("no size is given")
    return max(sizes)


def _buckets(values: Values) -> list[Assignment]:
    """An image has the shape of multiples of bucket_tolerance that is nearest to it (toolkit/buckets.py)."""
    if not boolean(values["buckets"]):
        return [Assignment("aspect_ratio_bucketing", False, keys=("buckets",))]
    return [
        Assignment("aspect_ratio_bucketing", True, keys=("buckets",)),
        Assignment("bucket_step", integer(values["bucket_tolerance"]), common.SHAPES, ("bucket_tolerance",)),
        Assignment("no_upscale", True, keys=("bucket_tolerance",), quiet=True),
    ]


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


def control_table(most: int) -> Table:
    """Of models that edit images; numbered folders replace control_path (toolkit/config_modules.py)."""
    return _table_of_paths("control_path", "references", most)


def clip_table(clips: ClipFacts) -> Table:
    """Of models of videos: for all concepts, as the first says."""
    step = clips.step
    given = CombinedRule({"do_i2v": False}, "family_options.first_frame_conditioning", _first_frames, _GIVEN)
    return Table(
        rules=(
            Rule("num_frames", "frames", 1, lambda value: (integer(value) - 1) // step * step + 1, _FRAMES),
            Rule("fps", "fps", 24, number),
            *((given,) if clips.first_frame else ()),
        ),
        unsupported=(Unsupported("shrink_video_to_frames", _FRAMES, default=True),),
    )


def _first_frames(values: Values) -> list[Assignment]:
    return [Assignment(f"{PATH}first_frame_conditioning", float(boolean(values["do_i2v"])), _GIVEN)]


def sample_control_table(most: int) -> Table:
    """The same of a sample, whose first image may have either name."""
    return _table_of_paths("ctrl_img", "reference", most)


def _table_of_paths(name: str, target: str, most: int) -> Table:
    numbered = [f"{name}_{number}" for number in range(1, min(most, NUMBERED) + 1)]

    def read(values: Values) -> list[Assignment]:
        first, *more = (items(values[each]) for each in numbered)
        has_own = first or (any(more) and target == "references")
        given = [*(first if has_own else items(values[name])), *(path for each in more for path in each)]
        if not given:
            return []
        found = data_paths(given, most)
        return [Assignment(target, found.value, found.why)]

    return Table(rules=(CombinedRule({name: None, **dict.fromkeys(numbered)}, target, read),))


DATASET_TABLE = Table(
    rules=(
        Rule("folder_path", "path", None, data_path),
        Rule("num_repeats", "repeats", 1, integer),
        Rule("caption_ext", "caption_extension", ".txt", _caption_extension),
        Rule("is_reg", "prior", False, boolean, "an epoch shows as many of them as of all other images", optional=True),
        CombinedRule({"network_weight": 1.0, "loss_multiplier": 1.0}, "loss_weight", _weight, _NETWORK_WEIGHT),
        Rule("shuffle_tokens", "tag_shuffle", False, boolean),
        Rule("token_dropout_rate", "tag_dropout", 0.0, number),
        Rule("caption_dropout_rate", "caption_dropout", 0.0, number, optional=True),
        Rule("resolution", "resolutions", 512, lambda value: several_sides(items(value)), optional=True),
        Rule("keep_tokens", "keep_tags", 0, integer),
        Rule("flip_x", "horizontal_flip", False, boolean),
        Rule("random_crop", "crop_jitter", False, boolean),
        Rule("alpha_mask", "alpha_mask", False, boolean, common.ON_WHITE, optional=True),
    ),
    unsupported=(
        Unsupported("type", common.IMAGES_ONLY, default="image"),
        Unsupported("caption_type", "set by caption_ext", default="txt"),
        Unsupported("default_caption", "set prompt_prefix"),
        Unsupported("cache_text_embeddings", "Tandem does so automatically if no text encoder is trained"),
        Unsupported("mask_path", common.MASKS),
        Unsupported("mask_min_value", "set unmasked_weight"),
        Unsupported("augments augmentations", "set random_rotate, random_brightness, random_hue and so on"),
        Unsupported("scale", _DATA, default=1.0),
        Unsupported("standardize_images", _DATA),
        Unsupported("num_frames", common.IMAGES_ONLY, default=1),
        Unsupported("fps", common.IMAGES_ONLY, default=24),
        Unsupported("shrink_video_to_frames", common.IMAGES_ONLY, default=True),
        Unsupported("do_i2v", common.IMAGES_ONLY, default=False),
        Unsupported("full_size_control_images replay_transforms", _DATA, default=True),
        Unsupported("num_workers prefetch_factor", "set loader_workers and prefetch_factor", default=2),
        Unsupported("trigger_word", "set prompt_prefix if this folder is to have its own"),
        Unsupported("*", _DATA),
    ),
)

# Settings that all concepts share in Tandem: those of the first dataset are used. Its resolution is that of all; a
# dataset with several, or another one, has them as its own (preprocess_dataset_raw_config copies it for each).
FIRST_TABLE = Table(
    rules=(
        Rule("resolution", "resolution", 512, _side),
        CombinedRule(
            {"buckets": True, "bucket_tolerance": 64},
            "aspect_ratio_bucketing, bucket_step, no_upscale",
            _buckets,
            "ai-toolkit enlarges no image",
        ),
        common.LATENTS,
    )
)

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
