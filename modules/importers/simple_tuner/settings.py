"""SimpleTuner's settings. Names and defaults as in its helpers/configuration/cmd_args.py."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from modules.facts import all_facts
from modules.importers import common
from modules.importers.flow_families import known_family
from modules.importers.flow_rules import SIMPLE_TUNER_RULES
from modules.importers.memory import ONE_SCALE, base_weights_rule, encoder_weights_rule
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import (
    boolean,
    choice,
    integer,
    is_text,
    model_path,
    non_empty_text,
    number,
    optional_number,
    output_path,
    positive_integer,
    positive_number,
    precision,
    steps,
    text,
)
from modules.importers.rules import (
    EMPTY_VALUES,
    Assignment,
    ChangedValue,
    CombinedRule,
    PathValue,
    Rule,
    Table,
    UnsupportedValueError,
    Values,
)
from modules.importers.simple_tuner.unsupported import UNSUPPORTED

SAMPLE_NUMBERS = {
    "validation_num_inference_steps": "steps",
    "validation_guidance": "guidance_scale",
    "validation_seed": "seed",
}
# helpers/training/optimizer_param.py, optimizer_choices: what differs from Tandem's defaults.
_ADAMW = {"eps": 1e-6}
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(("adamw_bf16", "adamw", "adamw8bit", "adamw4bit", "adamfp8", "adamwfp8"), _ADAMW),
    "prodigy": {"betas": [0.9, 0.99]},
}
SCHEDULE_FREE: Mapping[str, str] = {"prodigy": "prodigyplusschedulefree"}  # the class of that name there
OPTIMI: Mapping[str, object] = {"betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.0}


def _family(value: object) -> object:
    return known_family(value) or ChangedValue(str(value).lower() or "unknown", common.NO_FAMILY)


def _base_model(values: Values) -> list[Assignment]:
    """The model, or that which SimpleTuner takes for the family and flavour if none is given."""
    name, flavour = values["pretrained_model_name_or_path"], str(values["model_flavour"] or "")
    if name not in EMPTY_VALUES:
        return [Assignment("base_model", model_path(name), keys=("pretrained_model_name_or_path",))]
    family = known_family(values["model_family"])
    known = all_facts()[family].simple_tuner if family else {}
    if (found := known.get(flavour or next(iter(known), ""))) is not None:
        why = "the file has no base model: this is SimpleTuner's for the family"
        return [Assignment("base_model", PathValue(found, "model"), why, ("model_flavour", "model_family"))]
    return []


def _method(values: Values) -> list[Assignment]:
    kind = str(values["model_type"]).lower()
    if kind not in ("lora", "full", "deepfloyd-lora", "deepfloyd-full"):
        raise UnsupportedValueError("Tandem has fine_tune, lora and embedding; set method")
    if "lora" not in kind:
        return [Assignment("method", "fine_tune", keys=("model_type",))]
    found = [Assignment("method", "lora", keys=("model_type",))]
    if str(values["lora_type"]).lower() == "lycoris":
        why = "Tandem does not read lycoris_config: set lora_algorithm, lora_rank and lokr_factor"
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


def _rate(values: Values) -> list[Assignment]:
    rate = positive_number(values["learning_rate"])
    if not boolean(values["lr_scale"]):
        return [Assignment("learning_rate", rate, keys=("learning_rate",)), _scaling("none")]
    is_root = boolean(values["lr_scale_sqrt"])
    batch = max(number(values["train_batch_size"]), 1) * max(number(values["gradient_accumulation_steps"]), 1)
    factor = math.sqrt(batch) if is_root else batch
    why = f"multiplied by {factor:g}, as lr_scale does" if factor != 1 else ""
    scaling = _scaling("sqrt" if is_root else "linear")
    return [Assignment("learning_rate", rate * factor, why, ("learning_rate",)), scaling]


def _scaling(name: str) -> Assignment:
    return Assignment("lr_scaling", name, keys=("lr_scale", "lr_scale_sqrt"))


def _schedule(values: Values) -> list[Assignment]:
    name = str(values["lr_scheduler"]).lower()
    warmup = Assignment("warmup_steps", integer(values["lr_warmup_steps"]), keys=("lr_warmup_steps",))
    if name not in common.SCHEDULES:
        why = f"Tandem has no schedule {name}; set scheduler"
        return [Assignment("", why=why, keys=("lr_scheduler",)), warmup]
    target = common.SCHEDULES[name]
    found = [Assignment("scheduler", target, keys=("lr_scheduler",)), warmup]
    if name == "cosine_with_restarts":
        found.append(Assignment("scheduler_cycles", integer(values["lr_num_cycles"]), keys=("lr_num_cycles",)))
    if name == "polynomial":
        found.append(Assignment("scheduler_power", positive_number(values["lr_power"]), keys=("lr_power",)))
    if name in ("polynomial", "cosine"):
        floor = min(number(values["lr_end"]) / positive_number(values["learning_rate"]), 1.0)
        found.append(Assignment("min_learning_rate_factor", floor, keys=("lr_end",)))
    return found


def _clipping(values: Values) -> list[Assignment]:
    by_norm = str(values["grad_clip_method"]).lower() == "norm"
    why = "" if by_norm else "SimpleTuner clips single values of the gradient at it, Tandem the gradient's norm"
    return [Assignment("max_grad_norm", optional_number(values["max_grad_norm"]), why)]


def _offset_noise(values: Values) -> list[Assignment]:
    if not boolean(values["offset_noise"]):
        return [Assignment("", why="it is used with --offset_noise only", keys=("noise_offset",))]
    share = number(values["noise_offset_probability"])
    why = f"SimpleTuner adds it to {share:.0%} of the steps, Tandem to all" if share < 1 else ""
    return [Assignment("family_options.offset_noise", number(values["noise_offset"]), why)]


def _optimizer(values: Values) -> list[Assignment]:
    given: dict[str, object] = {}
    for part in filter(None, str(values["optimizer_config"] or "").split(",")):
        name, _, value = part.partition("=")
        given[name.strip()] = value.strip()
    written = str(values["optimizer"]).lower()
    plain = re.sub(r"^(bnb|ao|optimi)-|-paged$|\+\w+$", "", written)
    name = SCHEDULE_FREE.get(plain, plain)
    found = optimizer_assignments(name, given, "optimizer", arguments_key="optimizer_config")
    defaults = OPTIMI if written.startswith("optimi-adam") else DEFAULTS.get(plain, {})
    own = [
        Assignment(f"optimizer.{name}", value, keys=("optimizer",))
        for name, value in defaults.items()
        if name not in given
    ]
    return [*found, *own]


def _ema_decay(values: Values) -> list[Assignment]:
    decay, steps = number(values["ema_decay"]), positive_integer(values["ema_update_interval"]) or 1
    if steps <= 1 or not 0 < decay < 1:
        return [Assignment("ema_decay", decay)]
    root = round(decay ** (1 / steps), 8)
    return [Assignment("ema_decay", root, common.ema_change(decay, root, steps, "SimpleTuner"))]


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
        if values[key] is None and key == "validation_seed":
            found.append(Assignment("samples.0.seed", number(values["seed"] or 0), keys=(key,)))
        elif values[key] is not None:
            found.append(Assignment(f"samples.0.{target}", number(values[key]), keys=(key,)))
    return found


def _base_weights(values: Values) -> str | None:
    """Such as int8-quanto, fp8-torchao or nf4-bnb: the format, and the library for it."""
    name = str(values["base_model_precision"] or "no_change").lower()
    if name == "no_change":
        return None
    if str(values["model_type"]).lower() != "lora":
        raise UnsupportedValueError("only frozen weights under a LoRA are quantised")
    kept = name.partition("-")[0]
    return "fp8" if kept == "fp8uz" else kept


_ENCODERS = {f"text_encoder_{number}_precision": "no_change" for number in range(1, 5)}


def _encoder_weights(values: Values) -> str | None:
    """That of the first text encoder that is quantised: all share one setting here."""
    names = [str(values[key] or "no_change").lower() for key in _ENCODERS]
    kept = next((name.partition("-")[0] for name in names if name != "no_change"), None)
    return "fp8" if kept == "fp8uz" else kept


_PREDICTIONS = choice({"epsilon": "epsilon", "v_prediction": "v_prediction"}, "set family_options.prediction_type")

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
        CombinedRule(
            {"pretrained_model_name_or_path": None, "model_flavour": None}, "base_model", _base_model,
            "without one SimpleTuner has a base model for SDXL", {"model_family": None},
        ),
        Rule("lora_dropout", "lora_dropout", 0.1, number),
        Rule("use_dora", "lora_weight_decompose", False, boolean, optional=True),
        Rule("prediction_type", "family_options.prediction_type", None, _PREDICTIONS, optional=True),
        Rule("rescale_betas_zero_snr", "family_options.zero_terminal_snr", False, boolean, optional=True),
        CombinedRule(
            {"noise_offset": 0.1, "offset_noise": False, "noise_offset_probability": 0.25},
            "family_options.offset_noise", _offset_noise, "SimpleTuner adds it to a quarter of the steps",
        ),
        common.loss_weighting("snr_gamma"),
        *SIMPLE_TUNER_RULES,
        common.HUBER,
        CombinedRule(
            {"max_train_steps": None, "num_train_epochs": 1}, "max_steps, epochs", _length,
            "steps take precedence over epochs",
        ),
        Rule("train_batch_size", "batch_size", 4, integer),
        Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, integer),
        Rule("gradient_checkpointing", "gradient_checkpointing", False, boolean),
        Rule("vae_batch_size", "cache_batch_size", 4, integer),
        CombinedRule(
            {"learning_rate": 4e-7, "lr_scale": False, "lr_scale_sqrt": False}, "learning_rate, lr_scaling", _rate,
            "multiplied as lr_scale says", {"train_batch_size": 4, "gradient_accumulation_steps": 1},
        ),
        CombinedRule(
            {"lr_scheduler": "sine", "lr_warmup_steps": 500, "lr_num_cycles": 1, "lr_power": 0.8, "lr_end": 4e-7},
            "scheduler, warmup_steps, scheduler_cycles, scheduler_power, min_learning_rate_factor", _schedule,
            "Tandem has no sine", {"learning_rate": 4e-7},
        ),
        CombinedRule({"optimizer": "adamw", "optimizer_config": None}, "optimizer", _optimizer, common.PLAIN_OPTIMIZER),
        CombinedRule({"max_grad_norm": 2.0, "grad_clip_method": "value"}, "max_grad_norm", _clipping),
        Rule("mixed_precision", "precision", "bf16", precision),
        base_weights_rule(
            {"base_model_precision": "no_change"}, _base_weights, {"model_type": "full"}, ONE_SCALE
        ),
        encoder_weights_rule(_ENCODERS, _encoder_weights),
        Rule("use_ema", "ema", False, boolean),
        CombinedRule(
            {"ema_decay": 0.995, "ema_update_interval": None}, "ema_decay", _ema_decay,
            "Tandem averages at every step: the decay is converted",
        ),
        Rule("seed", "seed", None, integer, optional=True),
        CombinedRule(
            {"resolution": 1024, "resolution_type": "pixel_area"}, "resolution", _resolution, "megapixels are converted"
        ),
        Rule("caption_dropout_probability", "caption_dropout", 0.0, lambda value: number(value or 0)),
        Rule("output_dir", "runs_dir", None, output_path, "every run gets its own folder in it", optional=True),
        Rule("tracker_run_name", "run_name", None, non_empty_text, optional=True),
        Rule("checkpointing_steps", "backup_every", 500, steps),
        Rule("checkpoints_total_limit", "backups_kept", None, integer, optional=True),
        CombinedRule(
            {
                "validation_prompt": None, "validation_negative_prompt": "blurry, cropped, ugly",
                "validation_resolution": 256, "validation_num_inference_steps": 30, "validation_guidance": 7.5,
                "validation_seed": None,
            },
            "samples", _sample, "SimpleTuner calls samples validation", {"seed": None},
        ),
        Rule("validation_steps", "sample_every", 100, steps, "SimpleTuner calls samples validation"),
    ),
    unsupported=UNSUPPORTED,
    renamed={"checkpoint_step_interval": "checkpointing_steps"},
)  # fmt: skip
