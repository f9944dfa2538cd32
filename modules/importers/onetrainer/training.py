"""OneTrainer's training and output settings. Names and defaults as in its modules/util/config/TrainConfig.py."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers import common
from modules.importers.onetrainer.data import DRAWN, several_resolutions
from modules.importers.onetrainer.optimizer import OPTIMIZER_RULE, OPTIMIZER_UNSUPPORTED, SCHEDULE_RULE
from modules.importers.onetrainer.submodules import (
    OTHER_MEMORY,
    ROUNDING_USES,
    network_section,
    rounds_stochastically,
)
from modules.importers.onetrainer.values import (
    ACCUMULATION,
    RATE_USES,
    interval,
    interval_change,
    learning_rates,
    warmup,
)
from modules.importers.readers import (
    PRECISIONS,
    boolean,
    device_ids,
    integer,
    non_empty_text,
    number,
    optional_number,
    positive_integer,
    precision,
    resolution_side,
)
from modules.importers.rules import (
    ANY,
    Assignment,
    ChangedValue,
    CombinedRule,
    Rule,
    Unsupported,
    Values,
)


def _resolution(value: object) -> object:
    sides = several_resolutions(value)
    if len(sides) < 2:
        return resolution_side(value)
    why = f"the largest; the concepts have all of them as resolutions: {DRAWN}"
    return ChangedValue(max(integer(side) for side in sides), why)


def _ema(values: Values) -> list[Assignment]:
    mode = str(values["ema"]).upper()
    if mode == "OFF":
        return []
    why = "the average stays on the model's device" if mode == "CPU" else ""
    decay = min(max(number(values["ema_decay"]), 0.0), 0.999999)
    steps = max(integer(values["ema_update_step_interval"]), 1)
    root = round(decay ** (1 / steps), 8)
    each = common.ema_change(decay, root, steps, "OneTrainer") if steps > 1 else ""
    return [
        Assignment("ema", True, why, ("ema",)),
        Assignment("ema_decay", root, each, ("ema_decay", "ema_update_step_interval")),
    ]


def _masks(values: Values) -> list[Assignment]:
    if not boolean(values["masked_training"]):
        return []
    outside = number(values["unmasked_weight"])
    why = (
        f"a grey m in a mask weighs {outside:g} + {1 - outside:g} m here, at least {outside:g} there" if outside else ""
    )
    found = [
        Assignment("masked_training", True, why, ("masked_training",)),
        Assignment("unmasked_weight", outside, keys=("unmasked_weight",)),
        Assignment(
            "normalize_masked_area_loss",
            boolean(values["normalize_masked_area_loss"]),
            keys=("normalize_masked_area_loss",),
        ),
    ]
    if number(values["unmasked_probability"]):
        why = "the mask is used at every step; increase unmasked_weight instead"
        found.append(Assignment("", why=why, keys=("unmasked_probability",)))
    return found


def _validation(values: Values) -> list[Assignment]:
    if not boolean(values["validation"]):
        return []
    unit = values["validate_after_unit"]
    every = interval(values["validate_after"], unit, values)
    return [Assignment("validate_every", every, interval_change(unit, values))]


_STEPS = "with gradient accumulation OneTrainer's steps are batches: they are converted"


def _every(target: str, name: str, count: object, unit: str) -> CombinedRule:
    def read(values: Values) -> list[Assignment]:
        given_unit = values[f"{name}_unit"]
        return [Assignment(target, interval(values[name], given_unit, values), interval_change(given_unit, values))]

    return CombinedRule({name: count, f"{name}_unit": unit}, target, read, _STEPS, ACCUMULATION)


def _backups(values: Values) -> list[Assignment]:
    if boolean(values["rolling_backup"]):
        return [Assignment("backups_kept", integer(values["rolling_backup_count"]))]
    return [
        Assignment(
            "",
            why="OneTrainer keeps all backups, Tandem the newest: set backups_kept or backups_kept_every",
        )
    ]


def _several_gpus(values: Values) -> list[Assignment]:
    """OneTrainer's own switch, or that of forks with settings for several machines, which is as here."""
    key = "multi_gpu" if values["enable_multi_gpu"] is None else "enable_multi_gpu"
    return [Assignment("enable_multi_gpu", boolean(values[key]), keys=(key,))]


def _recomputed(values: Values) -> list[Assignment]:
    key = f"{network_section(values)}.gradient_checkpointing"
    word = str(values[key]).upper().removeprefix("GRADIENTCHECKPOINTINGMETHOD.")
    if word == "CPU_OFFLOADED":
        why = "activations are recomputed, not offloaded to RAM"
        return [Assignment("gradient_checkpointing", True, why, (key,))]
    is_on = word == "ON" or boolean(values[key] if word != "OFF" else False)
    return [Assignment("gradient_checkpointing", is_on, keys=(key,))]


def _offload(values: Values) -> list[Assignment]:
    """Of each submodule; before version 11 of its files of all, and only with checkpointing CPU_OFFLOADED."""
    part = network_section(values)
    own, old = f"{part}.offload_fraction", "layer_offload_fraction"
    is_old = str(values[f"{part}.gradient_checkpointing"]).upper().endswith("CPU_OFFLOADED")
    key = own if number(values[own]) else old if number(values[old]) and is_old else ""
    if not key:
        return []
    if part == "unet":  # modules/modelSetup/BaseStableDiffusionSetup.py
        return [Assignment("", why="OneTrainer does not offload a UNet either", keys=(key,))]
    return [Assignment("block_offload", number(values[key]), keys=(key,))]


# modules/util/enum/Optimizer.py, supports_fused_back_pass, and whether Tandem's does, too.
_FUSED = {
    **dict.fromkeys(("ADAFACTOR", "CAME", "CAME_8BIT", "ADAM", "ADAMW", "ADAMW_ADV", "LION_ADV", "MUON_ADV"), True),
    **dict.fromkeys(("ADOPT_ADV", "PRODIGY_PLUS_SCHEDULE_FREE", "PRODIGY_ADV", "ADAMUON_ADV", "SIGNSGD_ADV"), False),
}
_FUSED_USES: Mapping[str, object] = {
    "optimizer.optimizer": "ADAMW", "train_dtype": "FLOAT_16", "gradient_accumulation_steps": 1, "multi_gpu": False,
}  # fmt: skip


def _fused(values: Values) -> list[Assignment]:
    is_used = boolean(values["optimizer.fused_back_pass"]) and str(values["optimizer.optimizer"]).upper() in _FUSED
    return [Assignment("fused_backward", True)] if is_used else []


def _clipping(values: Values) -> list[Assignment]:
    """With a fused back pass of each tensor's gradient alone (modules/trainer/GenericTrainer.py)."""
    limit = optional_number(values["clip_grad_norm"])
    is_fused = (
        bool(_fused(values))
        and _FUSED[str(values["optimizer.optimizer"]).upper()]
        and PRECISIONS.get(str(values["train_dtype"]).lower()) != "fp16"
        and number(values["gradient_accumulation_steps"]) <= 1
        and not boolean(values["multi_gpu"])
    )
    if limit is None or not is_fused:
        return [Assignment("max_grad_norm", limit, keys=("clip_grad_norm",))]
    why = "with fused_back_pass each tensor's gradient is clipped alone there, with fused_backward none is here"
    return [Assignment("max_grad_norm", None, why, ("clip_grad_norm",))]


def _rounding(values: Values) -> list[Assignment]:
    return [Assignment("stochastic_rounding", True)] if rounds_stochastically(values) else []


def _name(value: object) -> object:
    stem = non_empty_text(value).replace("\\", "/").rstrip("/").rpartition("/")[2].rpartition(".")
    return ChangedValue(stem[0] or stem[2], "the result is in the run's folder, under model")


_CHECKPOINTING: Mapping[str, object] = {
    "unet.gradient_checkpointing": True, "transformer.gradient_checkpointing": True,
}  # fmt: skip
_MODEL_TYPE: Mapping[str, object] = {"model_type": "STABLE_DIFFUSION_15"}
TRAINING_RULES: tuple[Rule | CombinedRule, ...] = (
    CombinedRule(
        {"learning_rate": 3e-6, "learning_rate_scaler": "NONE", "embedding_learning_rate": None},
        "learning_rate, lr_scaling", learning_rates, "multiplied by the square root set by learning_rate_scaler",
        {"training_method": "FINE_TUNE", **RATE_USES},
    ),
    SCHEDULE_RULE,
    CombinedRule({"learning_rate_warmup_steps": 200.0}, "warmup_steps, warmup_fraction", warmup, _STEPS, ACCUMULATION),
    Rule("epochs", "epochs", 100, integer),
    Rule("batch_size", "batch_size", 1, integer),
    Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, integer),
    CombinedRule(
        {"ema": "OFF", "ema_decay": 0.999, "ema_update_step_interval": 5}, "ema, ema_decay", _ema,
        "OneTrainer averages every few steps, Tandem at every step: the decay is converted",
    ),
    Rule("train_dtype", "precision", "FLOAT_16", precision),
    CombinedRule(
        {"clip_grad_norm": 1.0}, "max_grad_norm", _clipping, "none with a fused back pass",
        {**_FUSED_USES, "optimizer.fused_back_pass": False},
    ),
    CombinedRule(_CHECKPOINTING, "gradient_checkpointing", _recomputed, uses=_MODEL_TYPE),
    CombinedRule(
        {"layer_offload_fraction": 0.0, "transformer.offload_fraction": 0.0, "unet.offload_fraction": 0.0},
        "block_offload", _offload, "layer_offload_fraction with gradient_checkpointing CPU_OFFLOADED",
        {**_CHECKPOINTING, **_MODEL_TYPE},
    ),
    CombinedRule({"optimizer.fused_back_pass": False}, "fused_backward", _fused, uses=_FUSED_USES),
    CombinedRule(
        {"optimizer.stochastic_rounding": None}, "stochastic_rounding", _rounding,
        "for weights in BFLOAT_16 that are fine-tuned", ROUNDING_USES,
    ),
    Rule("compile", "compile", False, boolean),
    Rule("caching_threads", "loader_workers", 2, integer, "OneTrainer uses threads, Tandem processes"),
    Rule("resolution", "resolution", "512", _resolution),
    Rule("aspect_ratio_bucketing", "aspect_ratio_bucketing", True, boolean),
    Rule("image_caching", "cache_latents", True, boolean),
    Rule("only_cache", "cache_only", False, boolean),
    Rule(
        "text_encoder.dropout_probability", "caption_dropout", 0.0, number,
        "OneTrainer drops the caption for one text encoder, Tandem for all",
    ),
    CombinedRule(
        {
            "masked_training": False, "unmasked_weight": 0.1, "unmasked_probability": 0.1,
            "normalize_masked_area_loss": False,
        },
        "masked_training, unmasked_weight, normalize_masked_area_loss", _masks, "Tandem uses the mask at every step",
    ),
    CombinedRule(
        {"validation": False, "validate_after": 1, "validate_after_unit": "EPOCH"}, "validate_every", _validation,
        _STEPS, ACCUMULATION,
    ),
    _every("sample_every", "sample_after", 10, "MINUTE"),
    _every("backup_every", "backup_after", 30, "MINUTE"),
    _every("save_every", "save_every", 0, "NEVER"),
    CombinedRule({"rolling_backup": False, "rolling_backup_count": 3}, "backups_kept", _backups),
    Rule("output_model_destination", "run_name", "models/model.safetensors", _name, optional=True),
    Rule("tensorboard", "tensorboard", True, boolean),
    CombinedRule({"multi_gpu": False, "enable_multi_gpu": None}, "enable_multi_gpu", _several_gpus),
    Rule("distributed_backend", "distributed_backend", None, non_empty_text, optional=True),
    Rule("world_size", "world_size", None, positive_integer, optional=True),
    Rule("use_torchrun", "use_torchrun", None, boolean, optional=True),
    Rule("distributed_data_loading", "distributed_data_loading", None, boolean, optional=True),
    Rule("initial_port", "initial_port", None, integer, optional=True),
    Rule("node_rank", "node_rank", None, integer, optional=True),
    Rule("num_nodes", "num_nodes", None, integer, optional=True),
    Rule("master_addr", "master_addr", None, non_empty_text, optional=True),
    Rule("device_indexes", "device_ids", "", device_ids),
    OPTIMIZER_RULE,
)  # fmt: skip

_LAUNCH = "Tandem reduces gradients differently; see the Multi-GPU settings"

TRAINING_UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("__version *.__version", "the version of OneTrainer's file format", default=ANY),
    *OPTIMIZER_UNSUPPORTED,
    Unsupported("huggingface_cache_dir", "set HF_HOME in the environment"),
    Unsupported("offline_mode", "set HF_HUB_OFFLINE=1 in the environment"),
    Unsupported("workspace_dir", "all files of a run are in its folder in runs_dir", default="workspace/run"),
    Unsupported("cache_dir", "Tandem has its own cache: set cache_dir for another disk", default="workspace-cache/run"),
    Unsupported("debug_mode", "see the run's log"),
    Unsupported("debug_dir", "see the run's log", default="debug"),
    Unsupported("tensorboard_expose", "start TensorBoard yourself with --bind_all"),
    Unsupported("tensorboard_always_on", "the Monitor has a button for TensorBoard"),
    Unsupported("tensorboard_port", "the Monitor finds a free port", default=6006),
    Unsupported("continue_last_backup", "use --resume latest"),
    Unsupported("prevent_overwrites", "every run has its own folder"),
    Unsupported("include_train_config", "the run folder contains the config", default="NONE"),
    Unsupported("gradient_reduce_precision", _LAUNCH, default="FLOAT_32_STOCHASTIC"),
    Unsupported("fused_gradient_reduce async_gradient_reduce", _LAUNCH, default=True),
    Unsupported("async_gradient_reduce_buffer", _LAUNCH, default=100),
    Unsupported("async_offloading enable_activation_offloading", OTHER_MEMORY, default=True),
    Unsupported("text_caching", "Tandem always caches captions if possible", default=True),
    Unsupported("latent_caching_epochs", "set image_variations of the concepts", default=1),
    Unsupported("clear_cache_before_training", "Tandem's cache is updated automatically", default=True),
    Unsupported("prefetch_next_batch", "set prefetch_factor", default=True),
    Unsupported("train_device", "Tandem uses a GPU if there is one", default="cuda"),
    Unsupported("temp_device", "Tandem uses the CPU", default="cpu"),
    Unsupported("fallback_train_dtype", "all submodules share one precision", default="BFLOAT_16"),
    Unsupported("enable_autocast_cache", "PyTorch decides", default=True),
    Unsupported("frames", common.IMAGES_ONLY, default="25"),
    Unsupported("attention_mechanism", "PyTorch's attention chooses the fastest implementation", default="SDP"),
    Unsupported("masked_prior_preservation_weight", "use a concept with prior instead", default=0.0),
    Unsupported("circular_mask_generation", "create masks beforehand"),
    Unsupported("random_rotate_and_crop", "Tandem has the concepts' crop_jitter and random_rotate"),
    Unsupported("sample_skip_first", common.FIRST_SAMPLES, default=0),
    Unsupported("sample_image_format", "samples are PNG files with their settings as metadata", default="JPG"),
    Unsupported("sample_video_format", common.IMAGES_ONLY, default="MP4"),
    Unsupported("sample_audio_format", common.IMAGES_ONLY, default="MP3"),
    Unsupported("samples_to_tensorboard", "tensorboard also writes them", default=True),
    Unsupported("non_ema_sampling", "samples use the EMA if there is one", default=True),
    Unsupported("backup_before_save", "backups have their own interval", default=True),
    Unsupported("save_skip_first", "the first model is saved after the first interval", default=0),
    Unsupported("save_filename_prefix", "run_name names the run"),
    Unsupported(
        "secrets", "enter tokens where the libraries expect them, such as HF_TOKEN", is_group=True, secret=True,
    ),
    Unsupported(
        "cloud", "rent the machine yourself and start Tandem there; docs/multi_node.md", is_group=True, secret=True,
    ),
)  # fmt: skip
