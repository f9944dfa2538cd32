"""The optimizer, the batches, memory, and what is written; and what Tandem has no setting for."""

from __future__ import annotations

from collections.abc import Mapping

from modules.importers import common
from modules.importers.adafactor import IN_PYTORCH_OPTIMIZER
from modules.importers.memory import ONE_SCALE, base_weights_rule, fused_rule
from modules.importers.optimizers import optimizer_assignments
from modules.importers.readers import (
    boolean,
    choice,
    integer,
    items,
    number,
    optional_number,
    output_path,
    positive_number,
    save_dtype,
)
from modules.importers.rules import (
    Assignment,
    ChangedValue,
    CombinedRule,
    Rule,
    Unsupported,
    UnsupportedValueError,
    Values,
)

# Defaults of warner-benjamin/optimi, optimi/adamw.py and stableadamw.py, which differ from those of torch.
OPTIMI: Mapping[str, object] = {"betas": [0.9, 0.99], "eps": 1e-6}
OPTIMIZER_KEYS = (
    "betas", "weight_decay", "eps", "momentum", "d0", "d_coef", "decouple", "use_bias_correction", "scale_parameter",
    "relative_step", "warmup_init", "clip_threshold", "decay_rate",
)  # fmt: skip
FROZEN_DTYPES: Mapping[str, object] = {"model.diffusion_model_dtype": None, "model.transformer_dtype": None}
_COMPONENTS = "text encoders and autoencoder come from family_options.layout, a diffusers folder or a name on the hub"


def _optimizer(values: Values) -> list[Assignment]:
    name = values["optimizer.type"]
    defaults = OPTIMI if str(name).lower() in ("adamw_optimi", "stableadamw") else {}
    written = {key: values[f"optimizer.{key}"] for key in OPTIMIZER_KEYS}
    given = {**defaults, **{key: value for key, value in written.items() if value is not None}}
    return optimizer_assignments(name, given, "optimizer.type", "optimizer.", adafactor=IN_PYTORCH_OPTIMIZER)


def _rate(values: Values) -> list[Assignment]:
    if str(values["optimizer.type"]).lower() == "automagic":
        return [Assignment("learning_rate", 1.0, "where automagic starts there; a factor of prodigy here, which is 1")]
    rate = values["optimizer.lr"]
    return [] if rate is None else [Assignment("learning_rate", positive_number(rate))]


def _batch(value: object) -> object:
    sizes = [item[-1] if isinstance(item, list) and item else item for item in items(value)]
    if len(sizes) == 1:
        return integer(sizes[0])
    return ChangedValue(
        min((integer(size) for size in sizes), default=1), "the smallest of those for different resolutions"
    )


def _checkpointing(value: object) -> object:
    return True if value == "unsloth" else boolean(value)


def _base_weights(values: Values) -> str | None:
    """models/base.py and utils/common.py: transformer_dtype (or diffusion_model_dtype) is that of the frozen base."""
    name = next((str(values[key]).lower() for key in FROZEN_DTYPES if values[key]), "")
    if not name or name == str(values["model.dtype"] or "").lower():
        return None
    if not values["adapter.type"]:
        raise UnsupportedValueError("only frozen weights under a LoRA are kept in another format")
    return {"float8": "fp8", "float8_e4m3fn": "fp8", "bfloat16": "bf16", "float16": "fp16"}.get(name, name)


_SCHEDULES = choice({"constant": "constant", "linear": "linear", "cosine": "cosine"}, "set scheduler")
_LOWEST_RATE = 1e-6  # of cosine; train.py


def _schedule(values: Values) -> list[Assignment]:
    """train.py: a schedule takes the steps of all epochs, which begin after the warm-up."""
    name = _SCHEDULES(values["lr_scheduler"])
    warmup = integer(values["warmup_steps"])
    differs = {
        f"{warmup} steps (warmup_steps) later": warmup > 0,
        "with the epochs, whatever max_steps": values["max_steps"] is not None,
    }
    ends = " or ".join(text for text, is_so in differs.items() if is_so and name != "constant")
    why = f"it ends {ends} there, and with the run here" if ends else ""
    found = [Assignment("warmup_steps", warmup, keys=("warmup_steps",))]
    found.append(Assignment("scheduler", name, why, ("lr_scheduler",)))
    if name == "cosine" and (rate := optional_number(values["optimizer.lr"])):
        found.append(Assignment("min_learning_rate_factor", min(_LOWEST_RATE / rate, 1.0), keys=("lr_scheduler",)))
    return found


_PIPELINE = "Tandem has no pipeline parallelism: training_mode fully_sharded shards the model"
TRAINING_RULES: tuple[Rule | CombinedRule, ...] = (
    Rule("adapter.dropout", "lora_dropout", 0.0, number, optional=True),
    CombinedRule({"optimizer.lr": None}, "learning_rate", _rate, "1 for automagic", {"optimizer.type": "adamw"}),
    CombinedRule(
        {"optimizer.type": "adamw", **{f"optimizer.{name}": None for name in OPTIMIZER_KEYS}}, "optimizer",
        _optimizer, common.PLAIN_OPTIMIZER,
    ),
    Rule("epochs", "epochs", None, integer, optional=True),
    Rule("max_steps", "max_steps", None, integer, optional=True),
    Rule("micro_batch_size_per_gpu", "batch_size", 1, _batch),
    Rule("caching_batch_size", "cache_batch_size", 1, integer, optional=True),
    Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, integer),
    Rule("gradient_clipping", "max_grad_norm", 1.0, optional_number),
    CombinedRule(
        {"lr_scheduler": "constant", "warmup_steps": 0}, "scheduler, warmup_steps, min_learning_rate_factor",
        _schedule, "cosine falls to 1e-6", {"optimizer.lr": None, "max_steps": None},
    ),
    Rule("activation_checkpointing", "gradient_checkpointing", False, _checkpointing),
    base_weights_rule(
        FROZEN_DTYPES, _base_weights, {"model.dtype": None, "adapter.type": None}, ONE_SCALE
    ),
    fused_rule("optimizer.gradient_release"),
    Rule("compile", "compile", False, boolean, optional=True),
    Rule("output_dir", "runs_dir", None, output_path, optional=True),
    Rule("save_dtype", "save_dtype", None, save_dtype, optional=True),
    common.interval(
        "backup_every", {"checkpoint_every_n_minutes": "minutes", "checkpoint_every_n_epochs": "epochs"}
    ),
    common.interval("save_every", {"save_every_n_epochs": "epochs", "save_every_n_steps": "steps"}),
)  # fmt: skip
UNSUPPORTED = (
    Unsupported("pipeline_stages", _PIPELINE, default=1),
    Unsupported("partition_*", _PIPELINE),
    Unsupported("disable_block_swap_for_eval", "block_offload also holds for samples"),
    Unsupported("reentrant_activation_checkpointing", "Tandem decides"),
    Unsupported("force_constant_lr", "set learning_rate"),
    Unsupported("eval_datasets", "add a concept of the kind validation, and set validate_every", is_group=True),
    Unsupported("eval_*", "set validate_every"),
    Unsupported("image_*", common.IMAGES_ONLY),
    Unsupported("video_clip_mode", common.IMAGES_ONLY, default="single_beginning"),
    Unsupported("upload_hf_from_epoch huggingface_repo", common.UPLOAD),
    Unsupported("map_num_proc", "every GPU encodes its share of the images"),
    Unsupported("steps_per_print", "set log_every", default=1),
    Unsupported("x_axis_examples", "the Monitor shows steps or time"),
    Unsupported("monitoring.wandb_api_key", "Tandem logs to TensorBoard", secret=True),
    Unsupported("monitoring.*", common.MONITOR),
    Unsupported("adapter.dtype", "adapters are always trained in fp32"),
    Unsupported("adapter.*", common.LORA),
    Unsupported("model.merge_adapters", common.MERGE_FIRST),
    Unsupported("model.vae model.vae_path model.text_encoder* model.llm_path", _COMPONENTS),
    Unsupported(
        "model.*_path",
        "Tandem loads a diffusers folder, one .safetensors file, or a name on the hub: set base_model",
    ),
    Unsupported("model.lumina_shift", "set family_options.timestep_shift", default=False),
    Unsupported("model.*", "Tandem has no such setting of a model"),
    Unsupported("optimizer.*", "the optimizer has no such setting here"),
)  # fmt: skip
