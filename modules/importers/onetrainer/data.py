"""OneTrainer's concepts and samples. Names and defaults as in its ConceptConfig.py and SampleConfig.py."""

from __future__ import annotations

from modules.importers.readers import boolean, data_path, integer, number, text
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

# Its samplers -> family_options.sample_scheduler
SAMPLERS = {
    "DDIM": "ddim",
    "EULER": "euler",
    "EULER_A": "euler_a",
    "DPMPP": "dpmpp_2m",
    "DPMPP_KARRAS": "dpmpp_2m_karras",
    "DPMPP_SDE_KARRAS": "dpmpp_2m_sde_karras",
    "UNIPC": "unipc",
}


def _kind(values: Values) -> list[Assignment]:
    name = str(values["type"]).upper()
    if boolean(values["validation_concept"]):
        return [Assignment("kind", "validation", keys=("validation_concept",))]
    if name == "PRIOR_PREDICTION":
        why = "OneTrainer trains on the untrained model's prediction for these images, Tandem on the images "
        why += "themselves, as many in an epoch as of all others"
        return [Assignment("prior", True, why, ("type",))]
    return [Assignment("kind", "validation" if name == "VALIDATION" else "train", keys=("type",))]


def _repeats(values: Values) -> list[Assignment]:
    if str(values["balancing_strategy"]).upper() == "SAMPLES":
        raise UnsupportedValueError("it is a number of images per epoch; set repeats, how often each appears")
    return [Assignment("repeats", number(values["balancing"]))]


def _captions(values: Values) -> list[Assignment]:
    prompt_source = str(values["text.prompt_source"]).lower()
    target = {"sample": "txt", "filename": "file_name"}.get(prompt_source)
    if target is None:
        raise UnsupportedValueError(
            "put the caption of a whole concept into the folder's name or metadata.jsonl: see docs/data.md"
        )
    return [Assignment("caption_source", target, keys=("text.prompt_source",))]


def _resolutions(values: Values) -> list[Assignment]:
    if not boolean(values["image.enable_resolution_override"]):
        return []
    sides = several_resolutions(values["image.resolution_override"])
    if not all(side.isdecimal() for side in sides):
        raise UnsupportedValueError("Tandem has shapes of its own for each resolution; give the sides of squares")
    return [Assignment("resolutions", " ".join(sides), DRAWN if len(sides) > 1 else "")]


def several_resolutions(value: object) -> list[str]:
    """The sides of the squares in OneTrainer's "512,768", or the whole text of "512x768"."""
    return [side for each in text(value).split(",") if (side := each.strip())]


def _variations(values: Values) -> list[Assignment]:
    count = integer(values["image_variations"])
    if count > 1 or not any(boolean(values[name]) for name in _RANDOM):
        return [Assignment("image_variations", count)]
    return [Assignment("image_variations", None, "one random view is cached there, 4 here")]


def _augmentation(kind: str, strength: str) -> CombinedRule:
    """`enable_random` comes before `enable_fixed`, of which the strength is the same (mgds, RandomRotate and so on)."""
    keys = tuple(f"image.{name}_{kind}" for name in ("enable_random", "enable_fixed"))
    most, why = (180, _CORNERS) if kind == "rotate" else (1, "")

    def read(values: Values) -> list[Assignment]:
        amount = number(values[f"image.{strength}"])
        if boolean(values[keys[0]]):
            return [Assignment(f"random_{kind}", min(abs(amount), most), why or "1 at most" * (abs(amount) > most))]
        fixed = (amount + 180) % 360 - 180 if kind == "rotate" else amount
        return [Assignment(f"fixed_{kind}", fixed, why)] if boolean(values[keys[1]]) else []

    given = {**dict.fromkeys(keys, False), f"image.{strength}": 0.0}
    return CombinedRule(given, f"random_{kind}, fixed_{kind}", read, why)


def _tag_dropout(values: Values) -> list[Assignment]:
    if not boolean(values["text.tag_dropout_enable"]):
        return []
    mode = str(values["text.tag_dropout_mode"]).upper()
    if mode == "FULL":
        if integer(values["text.keep_tags_count"]) or str(values[f"{_SPECIAL}_mode"]).upper() != "NONE":
            raise UnsupportedValueError("it drops all tags but some at once; set tag_dropout or caption_dropout")
        return [Assignment("caption_dropout", number(values["text.tag_dropout_probability"]))]
    why = "tags at the end are not dropped more often" if "WEIGHTED" in mode else ""
    keys = ("text.tag_dropout_enable", "text.tag_dropout_mode", "text.tag_dropout_probability")
    found = [Assignment("tag_dropout", number(values["text.tag_dropout_probability"]), why, keys)]
    special = str(values["text.tag_dropout_special_tags_mode"]).upper()
    if special != "NONE":  # mgds, DropTags: a list of tags, or a file with one
        listed, tags = (_SPECIAL, f"{_SPECIAL}_mode"), text(values[_SPECIAL])
        if boolean(values[f"{_SPECIAL}_regex"]) or tags.lower().endswith((".txt", ".csv")):
            found.append(Assignment("", why="give the tags themselves in kept_tags or dropped_tags", keys=listed))
        else:
            why = "Tandem takes them with small and capital letters alike"
            found.append(Assignment("kept_tags" if special == "WHITELIST" else "dropped_tags", tags, why, listed))
    return found


DRAWN = "OneTrainer draws one of them for each image, Tandem shows each image at each of them in every epoch"
_SPECIAL = "text.tag_dropout_special_tags"
_CORNERS = "the corners are black there; Tandem enlarges the image until none is empty"
_COLOURS = ("brightness", "contrast", "saturation", "hue")
_RANDOM = ("image.enable_crop_jitter", *(f"image.enable_random_{each}" for each in ("rotate", *_COLOURS)))

CONCEPT_TABLE = Table(
    rules=(
        Rule("path", "path", "", data_path),
        Rule("name", "name", "", text, optional=True),
        Rule("enabled", "enabled", True, boolean),
        CombinedRule({"type": "STANDARD", "validation_concept": False}, "kind, prior", _kind),
        Rule("include_subdirectories", "include_subfolders", False, boolean),
        CombinedRule(
            {"image_variations": 1}, "image_variations", _variations, "1 with random crops or colours is 4 here",
            dict.fromkeys(_RANDOM, False) | {"image.enable_crop_jitter": True},
        ),
        CombinedRule({"balancing": 1.0, "balancing_strategy": "REPEATS"}, "repeats", _repeats),
        Rule("loss_weight", "loss_weight", 1.0, number),
        CombinedRule(
            {"image.enable_resolution_override": False, "image.resolution_override": "512"},
            "resolutions", _resolutions,
        ),
        Rule("image.enable_crop_jitter", "crop_jitter", True, boolean),
        Rule("image.enable_random_flip", "horizontal_flip", True, boolean),
        _augmentation("rotate", "random_rotate_max_angle"),
        *(_augmentation(kind, f"random_{kind}_max_strength") for kind in _COLOURS),
        CombinedRule({"text.prompt_source": "sample", "text.prompt_path": ""}, "caption_source", _captions),
        Rule("text.enable_tag_shuffling", "tag_shuffle", False, boolean),
        Rule("text.tag_delimiter", "tag_delimiter", ",", text),
        Rule("text.keep_tags_count", "keep_tags", 1, integer),
        CombinedRule(
            {
                "text.tag_dropout_enable": False, "text.tag_dropout_mode": "FULL", "text.tag_dropout_probability": 0.0,
                _SPECIAL: "", f"{_SPECIAL}_mode": "NONE", f"{_SPECIAL}_regex": False,
            },
            "tag_dropout, caption_dropout, kept_tags, dropped_tags", _tag_dropout,
            "FULL, which drops all tags, is caption_dropout unless some are kept", {"text.keep_tags_count": 1},
        ),
    ),
    unsupported=(
        Unsupported("__version *.__version", "the version of OneTrainer's file format", default=ANY),
        Unsupported("seed", "the run has one seed, the same on any number of GPUs"),
        Unsupported("text_variations", "captions are chosen at random each time", default=1),
        Unsupported("concept_stats", "statistics of OneTrainer", is_group=True),
        Unsupported("image.enable_fixed_flip", "mirror the images beforehand"),
        Unsupported(
            "image.enable_random_circular_mask_shrink image.enable_random_mask_rotate_crop", "masks are not augmented",
        ),
        Unsupported("text.caps_randomize_enable text.caps_randomize_lowercase", "captions are used as written"),
        Unsupported(
            "text.caps_randomize_mode", "captions are used as written", default="capslock, title, first, random",
        ),
        Unsupported("text.caps_randomize_probability", "captions are used as written", default=0.0),
    ),
    renamed={"repeats": "balancing"},
)  # fmt: skip

SAMPLE_TABLE = Table(
    rules=(
        Rule("prompt", "prompt", "", text),
        Rule("negative_prompt", "negative_prompt", "", text),
        Rule("enabled", "enabled", True, boolean),
        Rule("width", "width", 512, integer),
        Rule("height", "height", 512, integer),
        Rule("seed", "seed", 42, integer),
        Rule("diffusion_steps", "steps", 20, integer),
        Rule("cfg_scale", "guidance_scale", 7.0, number),
    ),
    unsupported=(
        Unsupported("__version", "the version of OneTrainer's file format", default=ANY),
        Unsupported("noise_scheduler", "all samples share the sampler of the first", default="DDIM"),
        Unsupported("random_seed", "a fixed seed keeps samples comparable"),
        Unsupported("frames", "Tandem generates images", default=1),
        Unsupported("length", "Tandem generates images", default=10.0),
        Unsupported("text_encoder_?_layer_skip", "samples use the run's clip_skip", default=0),
        Unsupported("transformer_attention_mask prior_attention_mask", "for models with a T5 or LLM text encoder"),
        Unsupported("force_last_timestep", "set by family_options.zero_terminal_snr"),
        Unsupported("sample_inpainting base_image_path mask_image_path", "samples start from noise"),
    ),
)
