"""OneTrainer's concepts and samples. Names and defaults as in its ConceptConfig.py and SampleConfig.py."""

from __future__ import annotations

from modules.config.importing.readers import data_path, flag, number, text, whole
from modules.config.importing.rules import ANY, Joint, NotCarriedError, Outcome, Rule, Table, Values, Without

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


def _kind(values: Values) -> list[Outcome]:
    name = str(values["type"]).upper()
    if flag(values["validation_concept"]):
        return [Outcome("kind", "validation", keys=("validation_concept",))]
    if name == "PRIOR_PREDICTION":
        why = "OneTrainer learns what the untrained model makes of these pictures, Tandem the pictures themselves, of "
        why += "which an epoch shows as many as of all others"
        return [Outcome("prior", True, why, ("type",))]
    return [Outcome("kind", "validation" if name == "VALIDATION" else "train", keys=("type",))]


def _repeats(values: Values) -> list[Outcome]:
    if str(values["balancing_strategy"]).upper() == "SAMPLES":
        raise NotCarriedError("it is a number of pictures for each epoch; set repeats, which is how often each comes")
    return [Outcome("repeats", number(values["balancing"]))]


def _captions(values: Values) -> list[Outcome]:
    source = str(values["text.prompt_source"]).lower()
    ours = {"sample": "txt", "filename": "file_name"}.get(source)
    if ours is None:
        raise NotCarriedError(
            "captions of a whole concept go into the folder's name or metadata.jsonl: see docs/data.md"
        )
    return [Outcome("caption_source", ours, keys=("text.prompt_source",))]


def _tag_dropout(values: Values) -> list[Outcome]:
    if not flag(values["text.tag_dropout_enable"]):
        return []
    mode = str(values["text.tag_dropout_mode"]).upper()
    if mode == "FULL":
        raise NotCarriedError("it drops all tags at once; caption_dropout does that for all concepts")
    why = "tags at the end are not dropped more often" if "WEIGHTED" in mode else ""
    keys = ("text.tag_dropout_enable", "text.tag_dropout_mode", "text.tag_dropout_probability")
    return [Outcome("tag_dropout", number(values["text.tag_dropout_probability"]), why, keys)]


_COLOUR = "Tandem does not change colours; make the variations beforehand"
_TURN = "Tandem does not turn pictures; make the variations beforehand"

CONCEPT_TABLE = Table(
    rules=(
        Rule("path", "path", "", data_path),
        Rule("name", "name", "", text, ask=False),
        Rule("enabled", "enabled", True, flag),
        Joint({"type": "STANDARD", "validation_concept": False}, "kind, prior", _kind),
        Rule("include_subdirectories", "include_subfolders", False, flag),
        Rule("image_variations", "image_variations", 1, whole),
        Joint({"balancing": 1.0, "balancing_strategy": "REPEATS"}, "repeats", _repeats),
        Rule("loss_weight", "loss_weight", 1.0, number),
        Rule("image.enable_crop_jitter", "crop_jitter", True, flag),
        Rule("image.enable_random_flip", "horizontal_flip", True, flag),
        Joint({"text.prompt_source": "sample", "text.prompt_path": ""}, "caption_source", _captions),
        Rule("text.enable_tag_shuffling", "tag_shuffle", False, flag),
        Rule("text.tag_delimiter", "tag_delimiter", ",", text),
        Rule("text.keep_tags_count", "keep_tags", 1, whole),
        Joint(
            {
                "text.tag_dropout_enable": False,
                "text.tag_dropout_mode": "FULL",
                "text.tag_dropout_probability": 0.0,
            },
            "tag_dropout",
            _tag_dropout,
        ),
    ),
    without=(
        Without("__version", ANY, "the version of OneTrainer's file format"),
        Without("*.__version", ANY, "the version of OneTrainer's file format"),
        Without("seed", None, "one seed holds for the whole run, and is the same on any number of GPUs"),
        Without("text_variations", 1, "captions are drawn anew each time"),
        Without("concept_stats", {}, "what OneTrainer counted", whole=True),
        Without("image.enable_fixed_flip", False, "mirror the pictures beforehand"),
        Without("image.*rotate*", 0.0, _TURN),
        Without("image.*brightness*", 0.0, _COLOUR),
        Without("image.*contrast*", 0.0, _COLOUR),
        Without("image.*saturation*", 0.0, _COLOUR),
        Without("image.*hue*", 0.0, _COLOUR),
        Without("image.enable_resolution_override", False, "one resolution holds for all concepts"),
        Without("image.resolution_override", "512", "one resolution holds for all concepts"),
        Without("image.enable_random_circular_mask_shrink", False, "masks are used as they are drawn"),
        Without("image.enable_random_mask_rotate_crop", False, "masks are used as they are drawn"),
        Without("text.tag_dropout_special_tags_mode", "NONE", "keep_tags in front are never dropped; others are alike"),
        Without("text.tag_dropout_special_tags", "", "keep_tags in front are never dropped; others are alike"),
        Without("text.tag_dropout_special_tags_regex", False, "keep_tags in front are never dropped; others are alike"),
        Without("text.caps_randomize_enable", False, "captions are used as they are written"),
        Without("text.caps_randomize_mode", "capslock, title, first, random", "captions are used as they are written"),
        Without("text.caps_randomize_probability", 0.0, "captions are used as they are written"),
        Without("text.caps_randomize_lowercase", False, "captions are used as they are written"),
    ),
    renamed={"repeats": "balancing"},
)

SAMPLE_TABLE = Table(
    rules=(
        Rule("prompt", "prompt", "", text),
        Rule("negative_prompt", "negative_prompt", "", text),
        Rule("enabled", "enabled", True, flag),
        Rule("width", "width", 512, whole),
        Rule("height", "height", 512, whole),
        Rule("seed", "seed", 42, whole),
        Rule("diffusion_steps", "steps", 20, whole),
        Rule("cfg_scale", "guidance_scale", 7.0, number),
    ),
    without=(
        Without("__version", ANY, "the version of OneTrainer's file format"),
        Without("noise_scheduler", "DDIM", "one sampler serves all samples: that of the first one"),
        Without("random_seed", False, "a fixed seed keeps samples comparable"),
        Without("frames", 1, "Tandem draws pictures"),
        Without("length", 10.0, "Tandem draws pictures"),
        Without("text_encoder_?_layer_skip", 0, "samples are drawn with the run's clip_skip"),
        Without("transformer_attention_mask", False, "for models with a T5 or LLM text encoder"),
        Without("prior_attention_mask", False, "for models with a T5 or LLM text encoder"),
        Without("force_last_timestep", False, "family_options.zero_terminal_snr decides it"),
        Without("sample_inpainting", False, "samples are drawn from noise"),
        Without("base_image_path", "", "samples are drawn from noise"),
        Without("mask_image_path", "", "samples are drawn from noise"),
    ),
)
