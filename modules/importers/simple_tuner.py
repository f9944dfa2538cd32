"""SimpleTuner's config.json, whose names may start with "--", and the multidatabackend.json that it refers to."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers import common
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import (
    boolean,
    choice,
    data_path,
    integer,
    is_path,
    is_text,
    model_path,
    non_empty_text,
    number,
    optional_number,
    output_path,
    positive_number,
    precision,
    steps,
    text,
)
from modules.importers.report import ImportEntry
from modules.importers.rules import (
    Assignment,
    ChangedValue,
    CombinedRule,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    Values,
)
from modules.importers.translation import Translation

TRAINER = "SimpleTuner"
SAMPLE_NUMBERS = {
    "validation_num_inference_steps": "steps",
    "validation_guidance": "guidance_scale",
    "validation_seed": "seed",
}
FAMILIES = {"sdxl": "stable_diffusion_xl", **dict.fromkeys(("sd1x", "sd2x", "legacy"), "stable_diffusion")}


def _family(value: object) -> object:
    name = str(value).lower()
    return FAMILIES.get(name) or ChangedValue(name or "unknown", common.NO_FAMILY)


def _method(values: Values) -> list[Assignment]:
    kind = str(values["model_type"]).lower()
    if kind not in ("lora", "full", "deepfloyd-lora", "deepfloyd-full"):
        raise UnsupportedValueError("Tandem has fine_tune, lora and embedding; set method")
    if "lora" not in kind:
        return [Assignment("method", "fine_tune", keys=("model_type",))]
    found = [Assignment("method", "lora", keys=("model_type",))]
    if str(values["lora_type"]).lower() == "lycoris":
        why = "Tandem trains plain LoRA and DoRA, and does not read lycoris_config"
        found.append(Assignment("", why=why, keys=("lora_type", "lycoris_config")))
    rank = integer(values["lora_rank"])
    alpha = rank if values["lora_alpha"] is None else number(values["lora_alpha"])
    return [
        *found,
        Assignment("lora_rank", rank, keys=("lora_rank",)),
        Assignment("lora_alpha", alpha, keys=("lora_alpha", "lora_rank")),
    ]


def _length(values: Values) -> list[Assignment]:
    count, epochs = optional_number(values["max_train_steps"]), optional_number(values["num_train_epochs"])
    if count and count > 0:
        return common.max_steps(integer(count), "max_train_steps")
    return [Assignment("epochs", integer(epochs), keys=("num_train_epochs",))] if epochs else []


def _optimizer(values: Values) -> list[Assignment]:
    given: dict[str, object] = {}
    for part in filter(None, str(values["optimizer_config"] or "").split(",")):
        name, _, value = part.partition("=")
        given[name.strip()] = value.strip()
    return optimizer_assignments(values["optimizer"], given, "optimizer", arguments_key="optimizer_config")


def _resolution(values: Values) -> list[Assignment]:
    kind, size = str(values["resolution_type"]).lower(), number(values["resolution"])
    if kind == "area":
        resolution_side = round((max(size, 0.0) * 1e6) ** 0.5 / 8) * 8
        return [Assignment("resolution", resolution_side, "megapixels become the side of a square of as many pixels")]
    return [Assignment("resolution", integer(size))]


def _sample(values: Values) -> list[Assignment]:
    prompt = values["validation_prompt"]
    if not is_text(prompt):
        return []
    keys = ("validation_prompt",)
    found = [Assignment("samples.0.prompt", text(prompt), keys=keys)]
    if values["validation_negative_prompt"]:
        key = "validation_negative_prompt"
        found.append(Assignment("samples.0.negative_prompt", text(values[key]), keys=(key,)))
    sizes = [item for item in str(values["validation_resolution"]).lower().split(",")[0].split("x") if item.strip()]
    if len(sizes) in (1, 2):
        key = "validation_resolution"
        found.append(Assignment("samples.0.width", integer(sizes[0].strip()), keys=(key,)))
        found.append(Assignment("samples.0.height", integer(sizes[-1].strip()), keys=(key,)))
    for key, target in SAMPLE_NUMBERS.items():
        if values[key] is not None:
            found.append(Assignment(f"samples.0.{target}", number(values[key]), keys=(key,)))
    return found


_LOSSES = choice({"l2": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}, "set family_options.loss")
_PREDICTIONS = choice({"epsilon": "epsilon", "v_prediction": "v_prediction"}, "set family_options.prediction_type")
_IMAGES = "Tandem scales all images to the area of the resolution"

TABLE = Table(
    rules=(
        CombinedRule(
            {
                "model_type": "full", "lora_type": "standard", "lycoris_config": None, "lora_rank": 16,
                "lora_alpha": None,
            },
            "method, lora_rank, lora_alpha", _method, "LyCORIS becomes plain LoRA; without alpha it is the rank",
        ),
        Rule("model_family", "family", None, _family, optional=True),
        Rule("pretrained_model_name_or_path", "base_model", None, model_path, optional=True),
        Rule("lora_dropout", "lora_dropout", None, number, optional=True),
        Rule("use_dora", "lora_weight_decompose", False, boolean, optional=True),
        Rule("prediction_type", "family_options.prediction_type", None, _PREDICTIONS, optional=True),
        Rule("rescale_betas_zero_snr", "family_options.zero_terminal_snr", False, boolean, optional=True),
        Rule("noise_offset", "family_options.offset_noise", None, number, optional=True),
        common.loss_weighting("snr_gamma"),
        Rule("loss_type", "family_options.loss", "l2", _LOSSES, optional=True),
        CombinedRule(
            {"max_train_steps": None, "num_train_epochs": None}, "max_steps, epochs", _length,
            "steps take precedence over epochs",
        ),
        Rule("train_batch_size", "batch_size", None, integer, optional=True),
        Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, integer),
        Rule("gradient_checkpointing", "gradient_checkpointing", False, boolean),
        Rule("vae_batch_size", "cache_batch_size", None, integer, optional=True),
        Rule("learning_rate", "learning_rate", None, positive_number, optional=True),
        Rule("lr_scheduler", "scheduler", None, choice(common.SCHEDULES, common.NO_SCHEDULE), optional=True),
        Rule("lr_warmup_steps", "warmup_steps", None, integer, optional=True),
        Rule("lr_num_cycles", "scheduler_cycles", 1, integer, optional=True),
        Rule("lr_power", "scheduler_power", None, positive_number, optional=True),
        CombinedRule({"optimizer": "adamw", "optimizer_config": None}, "optimizer", _optimizer, common.PLAIN_OPTIMIZER),
        Rule("max_grad_norm", "max_grad_norm", None, optional_number, optional=True),
        Rule("mixed_precision", "precision", "bf16", precision),
        Rule("use_ema", "ema", False, boolean),
        Rule("ema_decay", "ema_decay", None, number, optional=True),
        Rule("seed", "seed", None, integer, optional=True),
        CombinedRule(
            {"resolution": 1024, "resolution_type": "pixel_area"}, "resolution", _resolution, "megapixels are converted"
        ),
        Rule("caption_dropout_probability", "caption_dropout", None, number, optional=True),
        Rule("output_dir", "runs_dir", None, output_path, "every run gets its own folder in it", optional=True),
        Rule("tracker_run_name", "run_name", None, non_empty_text, optional=True),
        Rule("checkpointing_steps", "backup_every", 500, steps),
        Rule("checkpoints_total_limit", "backups_kept", None, integer, optional=True),
        Rule("validation_steps", "sample_every", None, steps, "SimpleTuner calls samples validation", optional=True),
        CombinedRule(
            {
                "validation_prompt": None, "validation_negative_prompt": None, "validation_resolution": 512,
                "validation_num_inference_steps": None, "validation_guidance": None, "validation_seed": None,
            },
            "samples", _sample, "SimpleTuner calls samples validation",
        ),
    ),
    unsupported=(
        Unsupported("resume_from_checkpoint", "use --resume latest", default="latest"),
        Unsupported("webhook_config", "Tandem has no webhooks", secret=True),
        Unsupported("report_to tracker_*", common.MONITOR),
        Unsupported("push_* hub_* model_card_*", common.UPLOAD),
        Unsupported("hub_token", common.UPLOAD, secret=True),
        Unsupported("disable_benchmark", common.FIRST_SAMPLES),
        Unsupported("minimum_image_size", _IMAGES, default=0),
        Unsupported("maximum_image_size target_downsample_size", _IMAGES),
        Unsupported("aspect_bucket_rounding", common.BUCKETS),
        Unsupported("base_model_precision", common.NO_QUANTISATION, default="no_change"),
        Unsupported("*_precision", common.NO_QUANTISATION),
        Unsupported("flow_*", common.FLOW),
        Unsupported("flux_*", "for a model family that Tandem does not have"),
        Unsupported("validation_*", "Tandem's samples have no such setting"),
        Unsupported("*", "Tandem has no such setting"),
    ),
    renamed={"checkpoint_step_interval": "checkpointing_steps"},
)  # fmt: skip


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
        Unsupported("crop*", "Tandem groups images by aspect ratio; crop_jitter shifts the crop"),
        Unsupported("resolution*", "all concepts share one resolution"),
        Unsupported("*image_size target_downsample_size", _IMAGES),
        Unsupported("aws_*", "Tandem reads local folders", secret=True),
        Unsupported("*", "Tandem's concepts have no such setting"),
    ),
)  # fmt: skip
TABLES = {"settings": TABLE, "each local dataset of images": BACKEND_TABLE}


def recognises(data: object) -> bool:
    """Whether the data has names that start with "--", or that only SimpleTuner uses."""
    if not isinstance(data, Mapping):
        return False
    names = {str(name).removeprefix("--") for name in data}
    known = {"model_family", "data_backend_config"} & names
    return bool(known) and ("pretrained_model_name_or_path" in names or "model_type" in names or len(known) == 2)


def translate(data: Mapping[str, object], translation: Translation) -> None:
    """Translate the settings and the local datasets."""
    written = {str(name).removeprefix("--"): str(name) for name in data}
    given = {str(name).removeprefix("--"): value for name, value in data.items()}
    sets = given.pop("data_backend_config", None)
    translation.apply(TABLE, given, written_as=written)
    translation.put("lr_scaling", "none")
    if sets is None:
        return
    key = written["data_backend_config"]
    content = translation.read_file(key, sets)
    if content is not None:
        translation.imported.append(ImportEntry(key, sets, "concepts", "its local datasets"))
        _backends(content, translation)


def _backends(content: object, translation: Translation) -> None:
    for index, backend in enumerate(content if isinstance(content, list) else []):
        prefix = f"data_backend_config.{index}."
        if not isinstance(backend, Mapping):
            translation.skip(prefix[:-1], backend, "expected a group")
            continue
        kind = str(backend.get("dataset_type", "image"))
        if kind in ("text_embeds", "image_embeds"):
            translation.skip(prefix[:-1], str(backend.get("id")), "Tandem has its own cache")
        elif kind != "image" or not is_path(backend.get("instance_data_dir")):
            translation.skip(prefix[:-1], str(backend.get("id")), "Tandem reads local folders of images")
        else:
            translation.apply(BACKEND_TABLE, backend, prefix, f"concepts.{translation.count('concepts')}.")
