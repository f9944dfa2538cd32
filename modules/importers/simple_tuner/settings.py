"""SimpleTuner's settings. Names and defaults as in simpletuner_sdk/server/services/field_registry/sections, whose later
sections replace what earlier ones declare (bc8e6ab, August 2026)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from modules.config.keywords import keywords_text
from modules.facts import all_facts
from modules.importers import common
from modules.importers.flow_families import known_family
from modules.importers.flow_rules import PATH, SIMPLE_TUNER_RULES
from modules.importers.memory import ONE_SCALE, base_weights_rule, encoder_weights_rule
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import (
    boolean,
    choice,
    integer,
    is_text,
    items,
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
    CombinedRule,
    PathValue,
    Rule,
    Table,
    UnsupportedValueError,
    Values,
)
from modules.importers.simple_tuner.data import resolution
from modules.importers.simple_tuner.lycoris import lycoris_assignments
from modules.importers.simple_tuner.unsupported import UNSUPPORTED, family_of

SAMPLE_NUMBERS = {
    "validation_num_inference_steps": "steps",
    "validation_guidance": "guidance_scale",
    "validation_seed": "seed",
}
# helpers/training/optimizer_param.py, optimizer_choices: what differs from Tandem's defaults.
_ADAMW = {"eps": 1e-6}
_KAHAN = {"eps": 1e-6, "weight_decay": 1e-3}
_OPTIMI: Mapping[str, object] = {"betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.0}
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(("adamw_bf16", "ao-adamw8bit", "ao-adamw4bit", "ao-adamfp8", "ao-adamwfp8"), _ADAMW),
    **dict.fromkeys(("bnb-adamw", "bnb-adamw8bit", "bnb-adamw-paged", "bnb-adamw8bit-paged"), _ADAMW),
    **dict.fromkeys(("adamw_schedulefree+aggressive", "adamw_schedulefree+no_kahan"), _KAHAN),
    **dict.fromkeys(("optimi-adamw", "optimi-adam"), _OPTIMI),
    "optimi-stableadamw": {**_OPTIMI, "weight_decay": 1e-2},
    "prodigy": {"betas": [0.9, 0.99]},
}
_FIRST_FRAMES = "SimpleTuner gives this model the first frame of every clip"
_NAMES: Mapping[str, str] = {"prodigy": "prodigyplusschedulefree", "stableadamw": "adamw"}  # by what they are there


def _family(values: Values) -> list[Assignment]:
    """The model that edits images is a flavour of another there."""
    if (name := values["model_family"]) is None:
        return []
    if (family := family_of(values)) is not None:
        clips, share = all_facts()[family].clips, f"{PATH}first_frame_conditioning"
        animated = [Assignment(share, 1.0, _FIRST_FRAMES)] if clips and clips.first_frame else []
        return [Assignment("family", family), *animated]
    return [Assignment("family", str(name).lower() or "unknown", common.NO_FAMILY)]


def _base_model(values: Values) -> list[Assignment]:
    """The model, or that which SimpleTuner takes for the family and flavour if none is given."""
    name, flavour = values["pretrained_model_name_or_path"], str(values["model_flavour"] or "")
    if name not in EMPTY_VALUES:
        return [Assignment("base_model", model_path(name), keys=("pretrained_model_name_or_path",))]
    family = family_of(values)
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
        return [*found, *lycoris_assignments(values["lycoris_config"])]
    rank = integer(values["lora_rank"])
    alpha = rank if values["lora_alpha"] is None else number(values["lora_alpha"])
    return [
        *found,
        Assignment("lora_rank", rank, keys=("lora_rank",)),
        Assignment("lora_alpha", alpha, keys=("lora_alpha", "lora_rank")),
        Assignment("lora_dropout", number(values["lora_dropout"]), keys=("lora_dropout",)),
        *_targets(values),
    ]


def _targets(values: Values) -> list[Assignment]:
    """get_lora_target_layers of helpers/models/*/model.py, whose names are the last words of layers' names."""
    named = values["peft_lora_target_modules"]
    if named not in EMPTY_VALUES:
        layers = items(named) if isinstance(named, list) else str(named).strip("[] ").split(",")
        words = [re.escape(str(layer).strip(" \"'")) for layer in layers]
        return [Assignment("lora_targets", rf"(^|\.)({'|'.join(words)})$", keys=("peft_lora_target_modules",))]
    family = known_family(values["model_family"])
    targets = all_facts()[family].simple_tuner_layers if family else "attention"
    found = [Assignment("lora_targets", targets, keys=("model_family",), quiet=True)]
    if (named := str(values["flux_lora_target"])) != "all":
        why = f"set lora_targets to the layers of {named}, if the model has them"
        found.append(Assignment("", why=why, keys=("flux_lora_target",)))
    return found


def _length(values: Values) -> list[Assignment]:
    count, epochs = optional_number(values["max_train_steps"]), optional_number(values["num_train_epochs"])
    if count and count > 0:
        unused = () if epochs else ("num_train_epochs",)  # 0, as it wants with max_train_steps
        return common.max_steps(integer(count), "max_train_steps", *unused)
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
    """helpers/training/custom_schedule.py, get_lr_scheduler; lr_warmup_steps is a warm-up in some of its schedules."""
    name = str(values["lr_scheduler"]).lower().replace("cosine_with_warmup", "cosine")
    period = integer(values["lr_warmup_steps"])
    keys: tuple[str, ...] = ("lr_scheduler",)
    if str(values["optimizer"]).lower().startswith("adamw_schedulefree"):
        why = "" if name.startswith("constant") else "SimpleTuner has no schedule with this optimizer"
        return [Assignment("scheduler", "constant", why, keys), *_warmup(period)]
    if name == "sine":
        why = "Tandem has no schedule that starts at half the rate and rises and falls like a sine: set scheduler"
        return [
            Assignment("", why=why, keys=keys),
            Assignment("", why="it is half the period of the sine, not a warm-up", keys=("lr_warmup_steps",)),
        ]
    if name == "cosine_with_restarts":
        why = "it keeps the rate there: CosineAnnealingHardRestarts is always at the start of a cycle"
        return [Assignment("scheduler", "constant", why, (*keys, "lr_warmup_steps"))]
    if name == "cosine":
        return _cosine(period if period > 0 else 1000, values)  # Cosine.__init__
    if name not in common.SCHEDULES:
        return [Assignment("", why=f"Tandem has no schedule {name}; set scheduler", keys=keys), *_warmup(period)]
    found = [Assignment("scheduler", common.SCHEDULES[name], keys=keys), *_warmup(period)]
    if name == "polynomial":
        found.append(Assignment("scheduler_power", positive_number(values["lr_power"]), keys=("lr_power",)))
        found.append(Assignment("min_learning_rate_factor", _floor(values), keys=("lr_end",)))
    return found


def _warmup(steps: int) -> list[Assignment]:
    return [Assignment("warmup_steps", steps, keys=("lr_warmup_steps",))]


def _floor(values: Values) -> float:
    """lr_end, as a fraction of the rate."""
    return min(number(values["lr_end"]) / positive_number(values["learning_rate"]), 1.0)


def _cosine(fall: int, values: Values) -> list[Assignment]:
    """Its Cosine falls to lr_end during `fall` steps, rises during as many, and so on, as torch's does."""
    arguments = {"T_max": fall, "eta_min": number(values["lr_end"])}
    keys = ("lr_scheduler", "lr_warmup_steps", "lr_end")
    why = f"the rate falls during {fall:,} steps, lr_warmup_steps, and rises again during as many, as there"
    return [
        Assignment("scheduler", "custom", keys=keys[:1], quiet=True),
        Assignment("scheduler_target", "torch.optim.lr_scheduler.CosineAnnealingLR", keys=keys[:1]),
        Assignment("scheduler_arguments", keywords_text(arguments), why, keys),
    ]


def _clipping(values: Values) -> list[Assignment]:
    """helpers/training/trainer.py: 0, and optimizers that scale their own updates, do without."""
    norm = optional_number(values["max_grad_norm"])
    if str(values["optimizer"]).lower() in ("optimi-stableadamw", "prodigy"):
        return [Assignment("max_grad_norm", None, "SimpleTuner does not clip with this optimizer")]
    by_norm = not norm or str(values["grad_clip_method"]).lower() == "norm"
    why = "" if by_norm else "SimpleTuner clips single values of the gradient at it, Tandem the gradient's norm"
    return [Assignment("max_grad_norm", norm or None, why)]


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
    plain = re.sub(r"^(bnb|ao|optimi|torch|sdnq)-|-paged$|\+\w+$", "", written)
    found = optimizer_assignments(_NAMES.get(plain, plain), given, "optimizer", arguments_key="optimizer_config")
    own = dict(DEFAULTS.get(written, {}))
    betas = ("optimizer_beta1", "optimizer_beta2")
    if all(values[key] is not None for key in betas):
        pair = [number(values[key]) for key in betas]
        found = [each for each in found if each.target != "optimizer.betas"]
        found.append(Assignment("optimizer.betas", pair, keys=betas))
        own.pop("betas", None)
    return [
        *found,
        *(
            Assignment(f"optimizer.{name}", value, keys=("optimizer",))
            for name, value in own.items()
            if name not in given
        ),
    ]


def _ema_decay(values: Values) -> list[Assignment]:
    decay, steps = number(values["ema_decay"]), positive_integer(values["ema_update_interval"]) or 1
    if steps <= 1 or not 0 < decay < 1:
        return [Assignment("ema_decay", decay)]
    root = round(decay ** (1 / steps), 8)
    return [Assignment("ema_decay", root, common.ema_change(decay, root, steps, "SimpleTuner"))]


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


_FORMATS = {"fp8uz": "fp8", "fp8wo": "fp8"}


def _sample_every(values: Values) -> list[Assignment]:
    if boolean(values["validation_disable"]):
        return [Assignment("sample_every", "never", keys=("validation_disable",))]
    return [Assignment("sample_every", steps(values["validation_step_interval"]), keys=("validation_step_interval",))]


def _base_weights(values: Values) -> str | None:
    """Such as int8-quanto, fp8-torchao or nf4-bnb: the format, and the library for it."""
    name = str(values["base_model_precision"] or "no_change").lower()
    if name == "no_change":
        return None
    if str(values["model_type"]).lower() != "lora":
        raise UnsupportedValueError("only frozen weights under a LoRA are quantised")
    return _FORMATS.get(name.partition("-")[0], name.partition("-")[0])


_ENCODERS = {f"text_encoder_{number}_precision": "no_change" for number in range(1, 5)}


def _encoder_weights(values: Values) -> str | None:
    """That of the first text encoder that is quantised: all share one setting here."""
    names = [str(values[key] or "no_change").lower() for key in _ENCODERS]
    kept = next((name.partition("-")[0] for name in names if name != "no_change"), None)
    return _FORMATS.get(kept, kept) if kept else None


_PREDICTIONS = choice({"epsilon": "epsilon", "v_prediction": "v_prediction"}, "set family_options.prediction_type")

TABLE = Table(
    rules=(
        CombinedRule(
            {
                "model_type": "full", "lora_type": "standard", "lycoris_config": None, "lora_rank": 16,
                "lora_alpha": None, "lora_dropout": 0.1, "peft_lora_target_modules": None, "flux_lora_target": "all",
            },
            "method, lora_algorithm, lora_rank, lora_alpha, lora_dropout, lora_targets, lokr_factor", _method,
            "without alpha it is the rank; LyCORIS is read from its own file", {"model_family": None},
        ),
        CombinedRule(
            {"model_family": None}, "family, family_options.first_frame_conditioning", _family,
            "a flavour may be another family", {"model_flavour": None},
        ),
        CombinedRule(
            {"pretrained_model_name_or_path": None, "model_flavour": None}, "base_model", _base_model,
            "without one SimpleTuner has a base model for SDXL", {"model_family": None},
        ),
        Rule("assistant_lora_path", "training_adapter", None, model_path, optional=True),
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
        Rule("gradient_checkpointing", "gradient_checkpointing", True, boolean),
        Rule("vae_batch_size", "cache_batch_size", 4, integer),
        CombinedRule(
            {"learning_rate": 4e-7, "lr_scale": False, "lr_scale_sqrt": False}, "learning_rate, lr_scaling", _rate,
            "multiplied as lr_scale says", {"train_batch_size": 4, "gradient_accumulation_steps": 1},
        ),
        CombinedRule(
            {"lr_scheduler": "constant_with_warmup", "lr_warmup_steps": 0, "lr_power": 0.8, "lr_end": 4e-7},
            "scheduler, warmup_steps, scheduler_cycles, scheduler_power, min_learning_rate_factor", _schedule,
            "lr_warmup_steps is the warm-up, but with cosine the steps until the rate rises again; Tandem has no sine",
            {"learning_rate": 4e-7, "max_train_steps": None, "optimizer": "adamw_bf16"},
        ),
        CombinedRule(
            {"optimizer": "adamw_bf16", "optimizer_config": None, "optimizer_beta1": None, "optimizer_beta2": None},
            "optimizer", _optimizer, common.PLAIN_OPTIMIZER,
        ),
        CombinedRule(
            {"max_grad_norm": 2.0, "grad_clip_method": "value"}, "max_grad_norm", _clipping,
            uses={"optimizer": "adamw_bf16"},
        ),
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
            {"resolution": 1024, "resolution_type": "pixel_area"}, "resolution", resolution, "megapixels are converted"
        ),
        Rule("caption_dropout_probability", "caption_dropout", 0.1, lambda value: number(value or 0)),
        Rule("output_dir", "runs_dir", None, output_path, "every run gets its own folder in it", optional=True),
        Rule("tracker_run_name", "run_name", None, non_empty_text, optional=True),
        Rule("checkpoint_step_interval", "backup_every", 500, steps),
        Rule("checkpoints_total_limit", "backups_kept", 5, integer),
        CombinedRule(
            {
                "validation_prompt": None, "validation_negative_prompt": "blurry, cropped, ugly",
                "validation_resolution": 256, "validation_num_inference_steps": 30, "validation_guidance": 7.5,
                "validation_seed": None,
            },
            "samples", _sample, "SimpleTuner calls samples validation", {"seed": None},
        ),
        CombinedRule(
            {"validation_step_interval": 100, "validation_disable": False}, "sample_every", _sample_every,
            "SimpleTuner calls samples validation",
        ),
    ),
    unsupported=UNSUPPORTED,
    renamed={
        "checkpointing_steps": "checkpoint_step_interval", "validation_steps": "validation_step_interval",
        "save_total_limit": "checkpoints_total_limit",
    },
)  # fmt: skip
