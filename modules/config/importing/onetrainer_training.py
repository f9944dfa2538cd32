"""OneTrainer: how it is trained, watched and kept. Names and defaults as in its modules/util/config/TrainConfig.py."""

from __future__ import annotations

from modules.config.importing.onetrainer_model import PART_DEFAULTS
from modules.config.importing.onetrainer_values import RATE_USES, device_ids, interval, learning_rates
from modules.config.importing.optimizers import outcomes
from modules.config.importing.readers import flag, number, optional_number, precision, side, some_text, whole
from modules.config.importing.rules import ANY, Changed, Joint, NotCarriedError, Outcome, Rule, Values, Without

SCHEDULES = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_restarts": "cosine_with_restarts",
    "cosine_with_hard_restarts": "cosine_with_restarts",
}
# The optimizer's settings that some optimizer of ours has too; None is "as the optimizer thinks best".
OPTIMIZER_KEYS = {
    "beta1": None, "beta2": None, "beta3": None, "eps": None, "weight_decay": None, "momentum": None,
    "nesterov": False, "fused": False, "clip_threshold": None, "decay_rate": None, "scale_parameter": False,
    "relative_step": False, "warmup_init": False, "d0": None, "d_coef": None, "use_bias_correction": False,
    "bias_correction": False, "safeguard_warmup": False, "decouple": False,
}  # fmt: skip
# The rest of its ~100 fields belongs to optimizers that Tandem does not have; these are not off by default.
OPTIMIZER_ON = (
    "stochastic_rounding", "weight_decay_by_lr", "split_groups", "split_groups_mean", "factored", "factored_fp32",
    "use_stableadamw", "d_limiter", "use_schedulefree", "rms_rescaling",
)  # fmt: skip
_ALSO = "it belongs to an optimizer that Tandem does not have"


def _optimizer(values: Values) -> list[Outcome]:
    given = {name: values[f"optimizer.{name}"] for name in OPTIMIZER_KEYS}
    switched_off = [name for name, default in OPTIMIZER_KEYS.items() if default is False and given[name] is False]
    name = str(values["optimizer.optimizer"])
    if "adafactor" not in name.lower():
        given |= dict.fromkeys(switched_off)
    return outcomes(name, given, ("optimizer.optimizer",), "optimizer.")


def _schedule(values: Values) -> list[Outcome]:
    name = str(values["learning_rate_scheduler"]).lower()
    ours, why = SCHEDULES.get(name), ""
    if name == "rex":
        ours, why = "linear", "Tandem has no REX; linear also falls to the end"
    elif name == "adafactor":
        ours, why = "constant", "Tandem sets Adafactor's learning rate itself"
    if ours is None:
        raise NotCarriedError("Tandem has no schedules of one's own; set scheduler")
    found = [Outcome("scheduler", ours, why, ("learning_rate_scheduler",))]
    if ours == "cosine_with_restarts":
        key = "learning_rate_cycles"
        found.append(Outcome("scheduler_cycles", whole(values[key]), keys=(key,)))
    if ours != "constant":
        key = "learning_rate_min_factor"
        found.append(Outcome("min_learning_rate_factor", number(values[key]), keys=(key,)))
    return found


def _warmup(value: object) -> object:
    found = number(value)
    if 0 < found <= 1:
        raise NotCarriedError("it is a share of all steps, which depend on the pictures; set warmup_steps in steps")
    return whole(value)


def _ema(values: Values) -> list[Outcome]:
    mode = str(values["ema"]).upper()
    if mode == "OFF":
        return []
    why = "the average stays on the device of the model" if mode == "CPU" else ""
    decay = min(max(number(values["ema_decay"]), 0.0), 0.999999)
    steps = max(whole(values["ema_update_step_interval"]), 1)
    each = f"Tandem averages at every step: the {steps}th root of {decay:g} remembers as long" if steps > 1 else ""
    return [
        Outcome("ema", True, why, ("ema",)),
        Outcome("ema_decay", round(decay ** (1 / steps), 8), each, ("ema_decay", "ema_update_step_interval")),
    ]


def _masks(values: Values) -> list[Outcome]:
    if not flag(values["masked_training"]):
        return []
    found = [
        Outcome("masked_training", True, keys=("masked_training",)),
        Outcome("unmasked_weight", number(values["unmasked_weight"]), keys=("unmasked_weight",)),
    ]
    if number(values["unmasked_probability"]):
        why = "the mask is used at every step; raise unmasked_weight instead"
        found.append(Outcome("", why=why, keys=("unmasked_probability",)))
    return found


def _validation(values: Values) -> list[Outcome]:
    if not flag(values["validation"]):
        return []
    return [Outcome("validate_every", interval(values["validate_after"], values["validate_after_unit"]))]


def _every(ours: str, name: str, count: object, unit: str) -> Joint:
    def read(values: Values) -> list[Outcome]:
        return [Outcome(ours, interval(values[name], values[f"{name}_unit"]))]

    return Joint({name: count, f"{name}_unit": unit}, ours, read)


def _backups(values: Values) -> list[Outcome]:
    if flag(values["rolling_backup"]):
        return [Outcome("backups_kept", whole(values["rolling_backup_count"]))]
    return [Outcome("", why="Tandem keeps the newest ones only; raise backups_kept to keep more")]


def _checkpointing(value: object) -> object:
    word = str(value).upper().removeprefix("GRADIENTCHECKPOINTINGMETHOD.")
    if word == "CPU_OFFLOADED":
        return Changed(True, "results are recomputed and not kept in RAM")
    return word == "ON" or flag(value if word != "OFF" else False)


def _name(value: object) -> object:
    stem = some_text(value).replace("\\", "/").rstrip("/").rpartition("/")[2].rpartition(".")
    return Changed(stem[0] or stem[2], "the result lies in the run's folder, under model")


TRAINING_RULES: tuple[Rule | Joint, ...] = (
    Joint(
        {"learning_rate": 3e-6, "learning_rate_scaler": "NONE", "embedding_learning_rate": None},
        "learning_rate, lr_scaling",
        learning_rates,
        "multiplied by the square root that learning_rate_scaler names",
        {"training_method": "FINE_TUNE", **RATE_USES},
    ),
    Joint(
        {"learning_rate_scheduler": "CONSTANT", "learning_rate_cycles": 1.0, "learning_rate_min_factor": 0.0},
        "scheduler, scheduler_cycles, min_learning_rate_factor",
        _schedule,
    ),
    Rule("learning_rate_warmup_steps", "warmup_steps", 200.0, _warmup),
    Rule("epochs", "epochs", 100, whole),
    Rule("batch_size", "batch_size", 1, whole),
    Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, whole),
    Joint(
        {"ema": "OFF", "ema_decay": 0.999, "ema_update_step_interval": 5},
        "ema, ema_decay",
        _ema,
        "OneTrainer averages every few steps, Tandem at each: the decay is converted",
    ),
    Rule("train_dtype", "precision", "FLOAT_16", precision),
    Rule("clip_grad_norm", "max_grad_norm", 1.0, optional_number),
    Rule("unet.gradient_checkpointing", "gradient_checkpointing", True, _checkpointing),
    Rule("compile", "compile", False, flag),
    Rule("caching_threads", "loader_workers", 2, whole, "OneTrainer means threads, Tandem processes"),
    Rule("resolution", "resolution", "512", side),
    Rule("aspect_ratio_bucketing", "aspect_ratio_bucketing", True, flag),
    Rule("only_cache", "cache_only", False, flag),
    Rule(
        "text_encoder.dropout_probability", "caption_dropout", 0.0, number,
        "OneTrainer drops the caption for one text encoder, Tandem for all",
    ),
    Joint(
        {"masked_training": False, "unmasked_weight": 0.1, "unmasked_probability": 0.1},
        "masked_training, unmasked_weight",
        _masks,
        "Tandem uses the mask at every step",
    ),
    Joint(
        {"validation": False, "validate_after": 1, "validate_after_unit": "EPOCH"}, "validate_every", _validation
    ),
    _every("sample_every", "sample_after", 10, "MINUTE"),
    _every("backup_every", "backup_after", 30, "MINUTE"),
    Joint({"rolling_backup": False, "rolling_backup_count": 3}, "backups_kept", _backups),
    Rule("output_model_destination", "run_name", "models/model.safetensors", _name, ask=False),
    Rule("tensorboard", "tensorboard", True, flag),
    Rule("multi_gpu", "enable_multi_gpu", False, flag),
    Rule("device_indexes", "device_ids", "", device_ids),
    Joint(
        {"optimizer.optimizer": "ADAMW", **{f"optimizer.{name}": value for name, value in OPTIMIZER_KEYS.items()}},
        "optimizer",
        _optimizer,
        "8-bit and other variants become the plain optimizer",
    ),
)  # fmt: skip

_LAUNCH = "Tandem exchanges gradients in another way; see the Multi-GPU settings"
_MEMORY = "Tandem has other ways to save memory: gradient_checkpointing, and parts with weights in bf16"
_SAVE = "Tandem writes the model at the end, and whenever you press Save or put a file named save into commands"

TRAINING_WITHOUT: tuple[Without, ...] = (
    Without("__version", ANY, "the version of OneTrainer's file format"),
    Without("optimizer.__version", ANY, "the version of OneTrainer's file format"),
    Without("custom_learning_rate_scheduler", None, "Tandem has no schedules of one's own"),
    Without("scheduler_params", [], "Tandem has no schedules of one's own", whole=True),
    Without("optimizer_defaults", {}, "what OneTrainer remembers for optimizers that are not in use", whole=True),
    Without("optimizer.fused_back_pass", False, "Tandem reduces gradients in one piece instead"),
    *(Without(f"optimizer.{name}", True, _ALSO) for name in OPTIMIZER_ON),
    Without("optimizer.muon_adam_config", {}, _ALSO, whole=True),
    Without("optimizer.orthogonal_gradient", "disabled", _ALSO),
    Without("optimizer.state_precision", "auto", _ALSO),
    Without("optimizer.centered_wd_mode", "full", _ALSO),
    Without("optimizer.*", None, _ALSO),
    Without("workspace_dir", "workspace/run", "everything of a run is in its folder below runs_dir"),
    Without("cache_dir", "workspace-cache/run", "Tandem's cache is its own: set cache_dir for another disk"),
    Without("debug_mode", False, "the run's log has what is needed"),
    Without("debug_dir", "debug", "the run's log has what is needed"),
    Without("tensorboard_expose", False, "start TensorBoard yourself with --bind_all"),
    Without("tensorboard_always_on", False, "the Monitor has a button for TensorBoard"),
    Without("tensorboard_port", 6006, "the Monitor finds a free port"),
    Without("continue_last_backup", False, "use --resume latest"),
    Without("prevent_overwrites", False, "every run has a folder of its own"),
    Without("include_train_config", "NONE", "the run folder holds the config"),
    Without("gradient_reduce_precision", "FLOAT_32_STOCHASTIC", _LAUNCH),
    Without("fused_gradient_reduce", True, _LAUNCH),
    Without("async_gradient_reduce", True, _LAUNCH),
    Without("async_gradient_reduce_buffer", 100, _LAUNCH),
    Without("async_offloading", True, _MEMORY),
    Without("layer_offload_fraction", 0.0, _MEMORY),
    Without("enable_activation_offloading", True, _MEMORY),
    Without("image_caching", True, "Tandem always prepares pictures and keeps them"),
    Without("text_caching", True, "Tandem always prepares captions where it can"),
    Without("latent_caching_epochs", 1, "image_variations of a concept does it"),
    Without("clear_cache_before_training", True, "Tandem's cache knows by itself what is out of date"),
    Without("prefetch_next_batch", True, "prefetch_factor does it"),
    Without("train_device", "cuda", "Tandem takes a GPU where there is one"),
    Without("temp_device", "cpu", "Tandem takes the CPU"),
    Without("fallback_train_dtype", "BFLOAT_16", "one precision holds for all parts"),
    Without("enable_autocast_cache", True, "PyTorch decides it"),
    Without("frames", "25", "Tandem trains pictures"),
    Without("attention_mechanism", "SDP", "Tandem uses PyTorch's own attention, which chooses the fastest way"),
    Without("normalize_masked_area_loss", False, "the weights of the mask are used as they are"),
    Without("masked_prior_preservation_weight", 0.0, "use a concept with prior instead"),
    Without("circular_mask_generation", False, "draw masks beforehand"),
    Without("random_rotate_and_crop", False, "the concept's random crop is what Tandem has"),
    Without("sample_skip_first", 0, "samples begin with the first interval"),
    Without("sample_image_format", "JPG", "samples are PNG files that carry their settings"),
    Without("sample_video_format", "MP4", "Tandem trains pictures"),
    Without("sample_audio_format", "MP3", "Tandem trains pictures"),
    Without("samples_to_tensorboard", True, "tensorboard writes them too"),
    Without("non_ema_sampling", True, "samples are drawn with the average where there is one"),
    Without("backup_before_save", True, "backups have their own interval"),
    Without("save_every", 0, _SAVE),
    Without("save_every_unit", "NEVER", _SAVE),
    Without("save_skip_first", 0, _SAVE),
    Without("save_filename_prefix", "", "run_name names the run"),
    Without("secrets", {}, "enter tokens where the libraries expect them, such as HF_TOKEN", whole=True, secret=True),
    Without(
        "cloud", {}, "rent the machine yourself and start Tandem there; docs/multi_node.md", whole=True, secret=True
    ),
)

# What is left of the parts of models: offloading, other files, parts that no family of Tandem has.
PART_REASONS = {
    "model_name": "put the part into the base model's folder",
    "include": "all parts of the model are loaded",
    "attention_mask": "for models with a T5 or LLM text encoder",
    "guidance_scale": "for models that were distilled with guidance",
    "gradient_checkpointing": "one gradient_checkpointing holds for all parts",
    "offload_fraction": _MEMORY,
    "activation_offloading": _MEMORY,
    "dropout_probability": "one caption_dropout holds for all text encoders",
}
OTHER_PARTS = (
    "vae", "prior", "transformer", "unconditional_transformer", "text_encoder_3", "text_encoder_4", "effnet_encoder",
    "decoder", "decoder_text_encoder", "decoder_vqgan",
)  # fmt: skip


def part_without() -> tuple[Without, ...]:
    """One line for each field of each part that has no rule."""
    found = []
    for part in ("unet", "text_encoder", "text_encoder_2", *OTHER_PARTS):
        for name, default in PART_DEFAULTS.items():
            absent = "Tandem does not train this part" if part == "vae" else f"no family of Tandem has a part {part}"
            why = PART_REASONS.get(name, absent) if part in ("unet", "text_encoder", "text_encoder_2") else absent
            usual = default
            if part.startswith("text_encoder_") and name.startswith("stop_training_after"):
                usual = 30 if name == "stop_training_after" else "EPOCH"
            elif part == "unconditional_transformer" and name in ("train", "gradient_checkpointing"):
                usual = False
            found.append(Without(f"{part}.{name}", usual, why))
    return tuple(found)
