"""kohya's sd-scripts and its GUI: training, monitoring and output settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modules.config.interval import Unit
from modules.config.keywords import keywords_text
from modules.config.names import class_of_torch
from modules.config.sections.optimizers import CLASS_NAME
from modules.importers import common
from modules.importers.adafactor import IN_TRANSFORMERS
from modules.importers.kohya.family import METHOD_KEYS, method
from modules.importers.memory import ONE_SCALE, ROUNDED, SET_OFFLOAD, base_weights_rule, fused_rule
from modules.importers.optimizers import optimizer_assignments, parse_arguments
from modules.importers.readers import (
    boolean,
    choice,
    device_ids,
    integer,
    non_empty_text,
    number,
    optional_number,
    output_path,
    positive_integer,
    positive_number,
    precision,
    save_dtype,
)
from modules.importers.rules import (
    ANY,
    EMPTY_VALUES,
    Assignment,
    CombinedRule,
    Rule,
    Unsupported,
    UnsupportedValueError,
    Values,
)

SAMPLERS = {
    "ddim": "ddim", "pndm": "pndm", "euler": "euler", "k_euler": "euler", "euler_a": "euler_a", "k_euler_a": "euler_a",
    "heun": "heun", "dpmsolver++": "dpmpp_2m",
}  # fmt: skip
_LOWEST_RATE = 1e-7  # lr_end of transformers' get_polynomial_decay_schedule_with_warmup
SCHEDULES = {**common.SCHEDULES, "adafactor": "constant", "cosine_with_min_lr": "cosine"}


def _optimizer(values: Values) -> list[Assignment]:
    key = "optimizer_type"
    name = values[key]
    if name in EMPTY_VALUES and boolean(values["use_8bit_adam"]):
        name, key = "AdamW8bit", "use_8bit_adam"
    elif name in EMPTY_VALUES and boolean(values["use_lion_optimizer"]):
        name, key = "Lion", "use_lion_optimizer"
    given = parse_arguments(values["optimizer_args"]) if values["optimizer_args"] not in EMPTY_VALUES else {}
    return optimizer_assignments(name or "AdamW", given, key, arguments_key="optimizer_args", adafactor=IN_TRANSFORMERS)


def _length(values: Values) -> list[Assignment]:
    epochs = optional_number(values["max_train_epochs"])
    steps = optional_number(values["max_train_steps"])
    if epochs:
        return [Assignment("epochs", integer(epochs), keys=("max_train_epochs",))]
    if values["epoch"] is not None and not steps:
        return [Assignment("epochs", integer(values["epoch"]), keys=("epoch",))]
    return common.max_steps(integer(steps or 1600), "max_train_steps")


def _schedule(values: Values) -> list[Assignment]:
    if values["lr_scheduler_type"] not in EMPTY_VALUES:  # library/train_util.py, get_scheduler_fix
        return _scheduler_class(str(values["lr_scheduler_type"]), values["lr_scheduler_args"])
    name = str(values["lr_scheduler"]).lower()
    target = SCHEDULES.get(name)
    if target is None:
        raise UnsupportedValueError(common.NO_SCHEDULE)
    why = "Tandem sets Adafactor's learning rate itself" if name == "adafactor" else ""
    found = [Assignment("scheduler", target, why, ("lr_scheduler",))]
    if target == "cosine_with_restarts":
        cycles = values["lr_scheduler_num_cycles"]
        if cycles not in EMPTY_VALUES:
            found.append(Assignment("scheduler_cycles", integer(cycles), keys=("lr_scheduler_num_cycles",)))
        elif values["epoch"] not in EMPTY_VALUES:
            why = "kohya's GUI takes one cycle for each epoch"
            found.append(Assignment("scheduler_cycles", integer(values["epoch"]), why, ("lr_scheduler",)))
    if target == "polynomial" and values["lr_scheduler_power"] not in EMPTY_VALUES:
        power = number(values["lr_scheduler_power"])
        found.append(Assignment("scheduler_power", power, keys=("lr_scheduler_power",)))
        lowest = min(_LOWEST_RATE / positive_number(values["learning_rate"]), 1.0)
        found.append(Assignment("min_learning_rate_factor", lowest, keys=("lr_scheduler",)))
    if name == "cosine_with_min_lr" and values["lr_scheduler_min_lr_ratio"] not in EMPTY_VALUES:
        share = number(values["lr_scheduler_min_lr_ratio"])
        found.append(Assignment("min_learning_rate_factor", share, keys=("lr_scheduler_min_lr_ratio",)))
    if values["lr_scheduler_args"] not in EMPTY_VALUES:
        found.append(Assignment("", why="set the schedule's own settings", keys=("lr_scheduler_args",)))
    return found


def _scheduler_class(name: str, arguments: object) -> list[Assignment]:
    target = class_of_torch("torch.optim.lr_scheduler", name) or name
    if not CLASS_NAME.fullmatch(target):
        raise UnsupportedValueError("torch.optim.lr_scheduler has no such class that depends on the step alone")
    why = "accelerate takes as many of its steps as there are processes; here it is one for each optimizer step"
    found = [
        Assignment("scheduler", "custom", keys=("lr_scheduler_type",), quiet=True),
        Assignment("scheduler_target", target, why, ("lr_scheduler_type",)),
    ]
    if arguments in EMPTY_VALUES:
        return found
    text = keywords_text(parse_arguments(arguments))
    return [*found, Assignment("scheduler_arguments", text, keys=("lr_scheduler_args",))]


def _warmup(values: Values) -> list[Assignment]:
    steps, percent = optional_number(values["lr_warmup_steps"]), optional_number(values["lr_warmup"])
    if not steps and not percent:
        return []
    if str(values["lr_scheduler"]).lower() == "constant":
        raise UnsupportedValueError("kohya's constant schedule has no warm-up; set warmup_steps if you want one")
    if steps and steps >= 1:
        return [Assignment("warmup_steps", integer(steps), keys=("lr_warmup_steps",))]
    if steps:
        return [Assignment("warmup_fraction", steps, keys=("lr_warmup_steps",))]
    return [Assignment("warmup_fraction", (percent or 0.0) / 100, keys=("lr_warmup",))]


def _layouts(values: Values) -> list[Assignment]:
    name, kind = str(values["save_model_as"] or "").lower(), method(values)
    why = "a pickle can run code when it is opened; Tandem writes safetensors" if name in ("ckpt", "pt") else ""
    if kind == "lora":
        return [Assignment("lora_layouts", "kohya", why)]
    if kind == "fine_tune":
        return [Assignment("save_single_file", not name.startswith("diffusers"), why)]
    return []


_MASKS = "Tandem expects a mask next to each image: mask_suffix"


def _masks(values: Values) -> list[Assignment]:
    if not boolean(values["masked_loss"]):
        return []
    return [Assignment("masked_training", True, _MASKS), Assignment("unmasked_weight", 0.0, quiet=True)]


def _processes(values: Values) -> list[Assignment]:
    count = integer(values["num_processes"])
    many = boolean(values["multi_gpu"]) or count > 1
    if not many:
        return []
    found = [Assignment("enable_multi_gpu", True, keys=("multi_gpu", "num_processes"))]
    if count > 1 and values["gpu_ids"] in EMPTY_VALUES:
        found.append(Assignment("world_size", count, keys=("num_processes",)))
    machines = integer(values["num_machines"])
    if machines > 1:
        found.append(Assignment("num_nodes", machines, keys=("num_machines",)))
    if values["gpu_ids"] not in EMPTY_VALUES:
        found.append(Assignment("device_ids", device_ids(values["gpu_ids"]), keys=("gpu_ids",)))
    return found


def _base_weights(values: Values) -> str | None:
    if not any(boolean(values[key]) for key in ("fp8_base", "fp8_base_unet")):
        return None
    if method(values) != "lora":
        raise UnsupportedValueError("only frozen weights under a LoRA are quantised")
    return "fp8"


def _rounding(values: Values) -> list[Assignment]:
    if not boolean(values["full_bf16"]):
        return []
    if method(values) != "fine_tune":
        raise UnsupportedValueError("a LoRA is always trained in fp32; parts sets the precision of frozen weights")
    return [Assignment("stochastic_rounding", True, ROUNDED)]


def _kept(values: Values) -> list[Assignment]:
    """As get_remove_epoch_no and get_remove_step_no of library/train_util.py."""
    every_epochs, last_epochs = (optional_number(values[f"save_{key}_epochs"]) or 0 for key in ("every_n", "last_n"))
    every_steps, last_steps = (optional_number(values[f"save_{key}_steps"]) or 0 for key in ("every_n", "last_n"))
    if every_epochs > 0 and last_epochs > 0:
        return [Assignment("saves_kept", integer(last_epochs), keys=("save_last_n_epochs",))]
    if every_steps > 0 and last_steps > 0 and not every_epochs:
        return [Assignment("saves_kept", int(last_steps // every_steps) + 1, keys=("save_last_n_steps",))]
    return []


_SAVE_EVERY: Final[Mapping[str, Unit]] = {"save_every_n_epochs": "epochs", "save_every_n_steps": "steps"}
# Also of musubi-tuner.
SHARED_RULES: tuple[Rule | CombinedRule, ...] = (
    Rule("learning_rate", "learning_rate", 2e-6, positive_number),
    CombinedRule(
        {"optimizer_type": "", "optimizer_args": None, "use_8bit_adam": False, "use_lion_optimizer": False},
        "optimizer", _optimizer, common.PLAIN_OPTIMIZER,
    ),
    CombinedRule(
        {
            "lr_scheduler": "constant", "lr_scheduler_num_cycles": None, "lr_scheduler_power": 1,
            "lr_scheduler_min_lr_ratio": None, "lr_scheduler_type": None, "lr_scheduler_args": None,
        },
        "scheduler, scheduler_cycles, scheduler_power, min_learning_rate_factor, scheduler_target, scheduler_arguments",
        _schedule,
        "lr_scheduler_min_lr_ratio is of cosine_with_min_lr; kohya's GUI takes one cycle for each epoch by default",
        {"epoch": None, "learning_rate": 2e-6},
    ),
    CombinedRule(
        {"lr_warmup_steps": 0, "lr_warmup": 0}, "warmup_steps, warmup_fraction", _warmup,
        "a number below 1, and lr_warmup of kohya's GUI in percent, is a fraction of all steps",
        {"lr_scheduler": "constant"},
    ),
    CombinedRule(
        {"max_train_epochs": None, "max_train_steps": None, "epoch": None}, "epochs, max_steps", _length,
        "epochs take precedence over steps; 1600 steps by default",
    ),
    Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, integer),
    Rule("max_grad_norm", "max_grad_norm", 1.0, optional_number),
    Rule("gradient_checkpointing", "gradient_checkpointing", False, boolean),
    fused_rule(
        "fused_backward_pass", "flux_fused_backward_pass", "sd3_fused_backward_pass", "blockwise_fused_optimizers",
        "fused_optimizer_groups",
    ),
    CombinedRule({"full_bf16": False}, "stochastic_rounding", _rounding, ROUNDED, METHOD_KEYS),
    Rule("seed", "seed", None, integer, optional=True),
    Rule("max_data_loader_n_workers", "loader_workers", 8, integer),
    Rule("persistent_data_loader_workers", "persistent_workers", False, boolean),
    common.interval("sample_every", {"sample_every_n_epochs": "epochs", "sample_every_n_steps": "steps"}),
    common.interval("save_every", _SAVE_EVERY),
    CombinedRule(
        {"save_last_n_epochs": None, "save_last_n_steps": None}, "saves_kept", _kept,
        "how many models are among the last so many epochs or steps", dict.fromkeys(_SAVE_EVERY),
    ),
    Rule("save_precision", "save_dtype", None, save_dtype, optional=True),
    Rule("output_dir", "runs_dir", None, output_path, "every run gets its own folder in it", optional=True),
    Rule("output_name", "run_name", None, non_empty_text, optional=True),
    Rule("metadata_title", "model_title", None, non_empty_text, optional=True),
    Rule("metadata_author", "model_author", None, non_empty_text, optional=True),
    Rule("metadata_license", "model_license", None, non_empty_text, optional=True),
    CombinedRule(
        {"multi_gpu": False, "num_processes": 1, "num_machines": 1, "gpu_ids": ""},
        "enable_multi_gpu, world_size, num_nodes, device_ids", _processes,
    ),
    Rule("main_process_port", "initial_port", 0, positive_integer, optional=True),
    Rule("ddp_static_graph", "static_graph", False, boolean, optional=True),
    Rule("ddp_gradient_as_bucket_view", "gradient_as_bucket_view", False, boolean, optional=True),
)  # fmt: skip
TRAINING_RULES: tuple[Rule | CombinedRule, ...] = (
    *SHARED_RULES,
    Rule("mixed_precision", "precision", "no", precision),
    base_weights_rule({"fp8_base": False, "fp8_base_unet": False}, _base_weights, METHOD_KEYS, ONE_SCALE),
    Rule("torch_compile", "compile", False, boolean, optional=True),
    Rule("opt_channelslast", "channels_last", False, boolean, optional=True),
    CombinedRule(
        {"masked_loss": False}, "masked_training, unmasked_weight", _masks, _MASKS
    ),
    common.LATENTS,
    Rule("vae_batch_size", "cache_batch_size", 1, positive_integer, optional=True),
    Rule("sample_sampler", "family_options.sample_scheduler", "ddim", choice(SAMPLERS, "choose another sampler")),
    CombinedRule({"save_model_as": None}, "lora_layouts, save_single_file", _layouts, "no pickles", METHOD_KEYS),
)  # fmt: skip

_FLOW = "text encoders and autoencoder come from family_options.layout, a diffusers folder or a name on the hub"

SHARED_UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("dynamo_backend", "compile uses PyTorch's default backend", default="no"),
    Unsupported("dynamo_mode", "compile uses PyTorch's defaults", default="default"),
    Unsupported("dynamo_*", "compile uses PyTorch's defaults"),
    Unsupported("ddp_timeout", "set step_timeout_s"),
    Unsupported("lr_decay_steps", "the learning rate decays over the whole run", default=0),
    Unsupported("lr_scheduler_timescale", "Tandem has no such schedule"),
    Unsupported("save_last_n_*_state", "set backups_kept, a number of backups", default=0),
    Unsupported("save_state*", "set backup_every: Tandem's backups always contain everything needed to resume"),
    Unsupported("resume initial_epoch initial_step skip_until_initial_step", "use --resume"),
    Unsupported("resume_from_huggingface", common.UPLOAD),
    Unsupported("huggingface_token", common.UPLOAD, secret=True),
    Unsupported("huggingface_* async_upload", common.UPLOAD),
    Unsupported("sample_at_first", common.FIRST_SAMPLES),
    Unsupported("logging_dir", "all files of a run are in its folder in runs_dir"),
    Unsupported("log_with log_* wandb_run_name use_wandb", common.MONITOR),
    Unsupported("wandb_api_key", common.MONITOR, secret=True),
    Unsupported("metadata_description metadata_tags training_comment", common.METADATA),
    Unsupported("no_metadata", "saved files contain training metadata; image folders only with metadata_dataset"),
    Unsupported("config_file", "the file itself", default=ANY),
    Unsupported("debug_dataset", "the Data page shows the images"),
)  # fmt: skip
TRAINING_UNSUPPORTED: tuple[Unsupported, ...] = (
    *SHARED_UNSUPPORTED,
    Unsupported("model_list", "used by kohya's GUI only", default=ANY),
    Unsupported(
        "train_dir create_caption create_buckets use_latent_files caption_metadata_filename latent_metadata_filename "
        "full_path generate_caption_database generate_image_buckets",
        "used by kohya's GUI only, to prepare files",
        default=ANY,
    ),
    Unsupported("xformers sdpa mem_eff_attn", "PyTorch's attention chooses the fastest implementation"),
    Unsupported("save_as_bool", "used by kohya's GUI only"),
    Unsupported(
        "full_fp16", "trained weights are always kept in fp32; parts sets the precision of frozen weights",
    ),
    Unsupported("no_half_vae sdxl_no_half_vae disable_mmap_load_safetensors mem_eff_save", "Tandem decides"),
    Unsupported("skip_cache_check", "Tandem checks its cache by the files' sizes and dates"),
    Unsupported(
        "cache_text_encoder_outputs* *_cache_text_encoder_outputs*",
        "Tandem does so automatically if no text encoder is trained",
    ),
    Unsupported("lowram lowvram highvram", "set family_options.offload_frozen instead"),
    Unsupported("cpu_offload_checkpointing", "set gradient_checkpointing instead"),
    Unsupported("*blocks_to_swap", SET_OFFLOAD, default=0),
    Unsupported("num_cpu_threads_per_process", "PyTorch decides", default=2),
    Unsupported("extra_accelerate_launch_args", "Tandem does not use accelerate: see the Multi-GPU settings"),
    Unsupported("additional_parameters", "set them by hand"),
    Unsupported("deepspeed zero_stage", "set training_mode fully_sharded instead"),
    Unsupported("save_n_epoch_ratio", "set save_every"),
    Unsupported("use_safetensors", "Tandem always writes safetensors"),
    Unsupported("console_log_*", "see the run's log"),
    Unsupported("output_config", "the run folder contains the config"),
    Unsupported("tokenizer_cache_dir", "set HF_HOME"),
    Unsupported("dataset_class", "Tandem has one kind of dataset"),
    Unsupported("conditioning_data_dir", common.MASKS),
    Unsupported("validation_* validate_every_n_*", "set validation_split and validate_every"),
    Unsupported("max_validation_steps", "all validation images are measured"),
    Unsupported("wavelet_loss*", "Tandem has no such loss"),
    Unsupported("model_prediction_type", "the transformer predicts the velocity, unscaled", default="raw"),
    Unsupported("apply_t5_attn_mask t5xxl_* ae flux1_* sd3_* save_clip save_t5xxl train_t5xxl", _FLOW),
    Unsupported("train_blocks train_double_block_indices train_single_block_indices", _FLOW, default="all"),
    Unsupported("in_json", "write captions next to the images, or as metadata.jsonl: see docs/data.md"),
)  # fmt: skip
