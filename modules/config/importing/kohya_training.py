"""kohya's sd-scripts and its window: how it is trained, watched and kept."""

from __future__ import annotations

from dataclasses import replace

from modules.config.importing.kohya_model import METHOD_KEYS, method
from modules.config.importing.optimizers import outcomes, parsed
from modules.config.importing.readers import (
    choice,
    flag,
    new_path,
    number,
    optional_number,
    positive,
    precision,
    save_dtype,
    some_text,
    whole,
)
from modules.config.importing.rules import ANY, BLANK, Joint, NotCarriedError, Outcome, Rule, Values, Without
from modules.config.interval import Interval, Unit

SAMPLERS = {
    "ddim": "ddim", "pndm": "pndm", "euler": "euler", "k_euler": "euler", "euler_a": "euler_a", "k_euler_a": "euler_a",
    "heun": "heun", "dpmsolver++": "dpmpp_2m",
}  # fmt: skip
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "adafactor": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "cosine_with_restarts": "cosine_with_restarts",
    "polynomial": "polynomial",
}
MANY_EPOCHS = 10_000  # where the number of steps ends a run


def _optimizer(values: Values) -> list[Outcome]:
    key = "optimizer_type"
    name = values[key]
    if name in BLANK and flag(values["use_8bit_adam"]):
        name, key = "AdamW8bit", "use_8bit_adam"
    elif name in BLANK and flag(values["use_lion_optimizer"]):
        name, key = "Lion", "use_lion_optimizer"
    given = parsed(values["optimizer_args"]) if values["optimizer_args"] not in BLANK else {}
    found = []
    for outcome in outcomes(name or "AdamW", given, (key,)):
        keys = (key,) if outcome.keys == (key,) else ("optimizer_args",)
        why = f"{outcome.keys[0]}: {outcome.why}" if outcome.why and keys != (key,) else outcome.why
        found.append(replace(outcome, why=why, keys=keys))
    return found


def _length(values: Values) -> list[Outcome]:
    epochs = optional_number(values["max_train_epochs"])
    steps = optional_number(values["max_train_steps"])
    if epochs:
        return [Outcome("epochs", whole(epochs), keys=("max_train_epochs",))]
    if values["epoch"] is not None and not steps:
        return [Outcome("epochs", whole(values["epoch"]), keys=("epoch",))]
    keys = ("max_train_steps",)
    return [
        Outcome("max_steps", whole(steps or 1600), keys=keys),
        Outcome("epochs", MANY_EPOCHS, "so many that max_steps ends the run", keys),
    ]


def _schedule(values: Values) -> list[Outcome]:
    name = str(values["lr_scheduler"]).lower()
    ours = SCHEDULES.get(name)
    if ours is None:
        raise NotCarriedError("Tandem has no such schedule; set scheduler")
    why = "Tandem sets Adafactor's learning rate itself" if name == "adafactor" else ""
    found = [Outcome("scheduler", ours, why, ("lr_scheduler",))]
    if ours == "cosine_with_restarts" and values["lr_scheduler_num_cycles"] not in BLANK:
        cycles = whole(values["lr_scheduler_num_cycles"])
        found.append(Outcome("scheduler_cycles", cycles, keys=("lr_scheduler_num_cycles",)))
    if ours == "polynomial" and values["lr_scheduler_power"] not in BLANK:
        power = number(values["lr_scheduler_power"])
        found.append(Outcome("scheduler_power", power, keys=("lr_scheduler_power",)))
    if ours != "constant" and values["lr_scheduler_min_lr_ratio"] not in BLANK:
        share = number(values["lr_scheduler_min_lr_ratio"])
        found.append(Outcome("min_learning_rate_factor", share, keys=("lr_scheduler_min_lr_ratio",)))
    return found


def _warmup(values: Values) -> list[Outcome]:
    steps, percent = optional_number(values["lr_warmup_steps"]), optional_number(values["lr_warmup"])
    if not steps and not percent:
        return []
    if str(values["lr_scheduler"]).lower() == "constant":
        raise NotCarriedError("kohya's schedule constant has no warm-up either; set warmup_steps if you want one")
    if steps and steps >= 1:
        return [Outcome("warmup_steps", whole(steps), keys=("lr_warmup_steps",))]
    share = steps if steps else (percent or 0.0) / 100
    total = optional_number(values["max_train_steps"])
    if not total or optional_number(values["max_train_epochs"]):
        raise NotCarriedError("it is a share of all steps, which depend on the pictures; set warmup_steps in steps")
    why = f"{share:.0%} of {total:.0f} steps"
    return [Outcome("warmup_steps", round(share * total), why, ("lr_warmup_steps", "lr_warmup"))]


def _every(ours: str, name: str, why: str = "") -> Joint:
    """How often, in epochs (which count more) or in steps."""
    epochs, steps = f"{name}_every_n_epochs", f"{name}_every_n_steps"

    def read(values: Values) -> list[Outcome]:
        pairs: tuple[tuple[str, Unit], ...] = ((epochs, "epochs"), (steps, "steps"))
        for key, unit in pairs:
            if (optional_number(values[key]) or 0) > 0:
                return [Outcome(ours, str(Interval(whole(values[key]), unit)), why, (key,))]
        return []

    return Joint({epochs: None, steps: None}, ours, read, why)


def _layouts(values: Values) -> list[Outcome]:
    name, kind = str(values["save_model_as"] or "").lower(), method(values)
    why = "a pickle can run code when it is opened; Tandem writes safetensors" if name in ("ckpt", "pt") else ""
    if kind == "lora":
        return [Outcome("lora_layouts", "kohya", why)]
    if kind == "fine_tune":
        return [Outcome("save_single_file", not name.startswith("diffusers"), why)]
    return []


def _device_ids(value: object) -> object:
    return [whole(part.strip()) for part in str(value).split(",") if part.strip()] or None


def _processes(values: Values) -> list[Outcome]:
    count = whole(values["num_processes"])
    many = flag(values["multi_gpu"]) or count > 1
    if not many:
        return []
    found = [Outcome("enable_multi_gpu", True, keys=("multi_gpu", "num_processes"))]
    if count > 1 and values["gpu_ids"] in BLANK:
        found.append(Outcome("world_size", count, keys=("num_processes",)))
    machines = whole(values["num_machines"])
    if machines > 1:
        found.append(Outcome("num_nodes", machines, keys=("num_machines",)))
    if values["gpu_ids"] not in BLANK:
        found.append(Outcome("device_ids", _device_ids(values["gpu_ids"]), keys=("gpu_ids",)))
    return found


def _compile(value: object) -> object:
    return str(value).lower() not in ("no", "") and flag(True)


_SAVES = "kohya writes models, Tandem backups from which a run goes on and models can be taken"
TRAINING_RULES: tuple[Rule | Joint, ...] = (
    Rule("learning_rate", "learning_rate", 2e-6, positive),
    Joint(
        {"optimizer_type": "", "optimizer_args": None, "use_8bit_adam": False, "use_lion_optimizer": False},
        "optimizer", _optimizer, "8-bit and other variants become the plain optimizer",
    ),
    Joint(
        {
            "lr_scheduler": "constant", "lr_scheduler_num_cycles": 1, "lr_scheduler_power": 1,
            "lr_scheduler_min_lr_ratio": None,
        },
        "scheduler, scheduler_cycles, scheduler_power, min_learning_rate_factor", _schedule,
    ),
    Joint(
        {"lr_warmup_steps": 0, "lr_warmup": 0}, "warmup_steps", _warmup,
        "a number below 1, and lr_warmup of kohya's window in percent, is a share of all steps",
        {"lr_scheduler": "constant", "max_train_steps": None, "max_train_epochs": None},
    ),
    Joint(
        {"max_train_epochs": None, "max_train_steps": None, "epoch": None}, "epochs, max_steps", _length,
        "epochs count more than steps, of which there are 1600 where the file says nothing",
    ),
    Rule("gradient_accumulation_steps", "gradient_accumulation_steps", 1, whole),
    Rule("max_grad_norm", "max_grad_norm", 1.0, optional_number),
    Rule("mixed_precision", "precision", "no", precision),
    Rule("gradient_checkpointing", "gradient_checkpointing", False, flag),
    Rule("torch_compile", "compile", False, flag, ask=False),
    Rule("opt_channelslast", "channels_last", False, flag, ask=False),
    Rule("seed", "seed", None, whole, ask=False),
    Rule("masked_loss", "masked_training", False, flag, "Tandem looks for a mask beside each picture: mask_suffix"),
    Rule("max_data_loader_n_workers", "loader_workers", 8, whole),
    Rule("persistent_data_loader_workers", "persistent_workers", False, flag),
    Rule("vae_batch_size", "cache_batch_size", 1, whole, ask=False),
    _every("sample_every", "sample"),
    Rule("sample_sampler", "family_options.sample_scheduler", "ddim", choice(SAMPLERS, "choose another sampler")),
    _every("backup_every", "save", _SAVES),
    Rule("save_last_n_epochs", "backups_kept", None, whole, _SAVES, ask=False),
    Rule("save_precision", "save_dtype", None, save_dtype, ask=False),
    Joint(
        {"save_model_as": None}, "lora_layouts, save_single_file", _layouts, "pickles are not written", METHOD_KEYS
    ),
    Rule("output_dir", "runs_dir", None, new_path, "every run gets a folder of its own in it", ask=False),
    Rule("output_name", "run_name", None, some_text, ask=False),
    Rule("metadata_title", "model_title", None, some_text, ask=False),
    Rule("metadata_author", "model_author", None, some_text, ask=False),
    Rule("metadata_license", "model_license", None, some_text, ask=False),
    Joint(
        {"multi_gpu": False, "num_processes": 1, "num_machines": 1, "gpu_ids": ""},
        "enable_multi_gpu, world_size, num_nodes, device_ids", _processes,
    ),
    Rule("main_process_port", "initial_port", 0, positive, ask=False),
    Rule("ddp_static_graph", "static_graph", False, flag, ask=False),
    Rule("ddp_gradient_as_bucket_view", "gradient_as_bucket_view", False, flag, ask=False),
)  # fmt: skip

_ATTENTION = "Tandem uses PyTorch's own attention, which chooses the fastest way"
_CACHE = "Tandem always prepares pictures once and keeps them in cache_dir"
_STATE = "Tandem's backups always hold everything that a run needs to go on"
_HUB = "upload the result yourself"
_WANDB = "Tandem writes for TensorBoard, and shows the run in its Monitor"
_WEIGHTS = "what is trained is always kept in fp32; parts says how frozen weights are kept"
_FLOW = "for models that Tandem has no family of yet"

TRAINING_WITHOUT: tuple[Without, ...] = (
    Without("model_list", ANY, "kohya's window only"),
    Without("xformers", False, _ATTENTION),
    Without("sdpa", False, _ATTENTION),
    Without("mem_eff_attn", False, _ATTENTION),
    Without("save_as_bool", False, "kohya's window only"),
    Without("full_fp16", False, _WEIGHTS),
    Without("full_bf16", False, _WEIGHTS),
    Without("fp8_base*", False, "Tandem does not quantise weights"),
    Without("no_half_vae", False, "Tandem decides it"),
    Without("sdxl_no_half_vae", False, "Tandem decides it"),
    Without("cache_latents*", False, _CACHE),
    Without("skip_cache_check", False, _CACHE),
    Without("cache_text_encoder_outputs*", False, "Tandem does so by itself where no text encoder is trained"),
    Without("*_cache_text_encoder_outputs*", False, "Tandem does so by itself where no text encoder is trained"),
    Without("*_fused_backward_pass", False, "Tandem reduces gradients in one piece instead"),
    Without("fused_backward_pass", False, "Tandem reduces gradients in one piece instead"),
    Without("fused_optimizer_groups", 0, "Tandem reduces gradients in one piece instead"),
    Without("blockwise_fused_optimizers", False, "Tandem reduces gradients in one piece instead"),
    Without("lowram", False, "offload_frozen is what Tandem has"),
    Without("highvram", False, "offload_frozen is what Tandem has"),
    Without("cpu_offload_checkpointing", False, "gradient_checkpointing is what Tandem has"),
    Without("*blocks_to_swap", 0, "gradient_checkpointing is what Tandem has"),
    Without("disable_mmap_load_safetensors", False, "Tandem decides it"),
    Without("mem_eff_save", False, "Tandem decides it"),
    Without("dynamo_backend", "no", "compile uses PyTorch's usual backend"),
    Without("dynamo_mode", "default", "compile uses PyTorch's usual way"),
    Without("dynamo_*", False, "compile uses PyTorch's usual way"),
    Without("num_cpu_threads_per_process", 2, "PyTorch decides it"),
    Without("extra_accelerate_launch_args", "", "Tandem starts without accelerate: see the Multi-GPU settings"),
    Without("additional_parameters", "", "set what they say by hand"),
    Without("ddp_timeout", None, "set step_timeout_s"),
    Without("deepspeed", False, "training_mode fully_sharded is what Tandem has"),
    Without("zero_stage", None, "training_mode fully_sharded is what Tandem has"),
    Without("lr_scheduler_type", "", "Tandem has no schedules of one's own"),
    Without("lr_scheduler_args", "", "Tandem has no schedules of one's own"),
    Without("lr_decay_steps", 0, "the learning rate falls over the whole run"),
    Without("lr_scheduler_timescale", None, "Tandem has no such schedule"),
    Without("save_n_epoch_ratio", None, "set backup_every"),
    Without("save_last_n_*", 0, "set backups_kept"),
    Without("save_state*", False, _STATE),
    Without("use_safetensors", False, "Tandem always writes safetensors"),
    Without("resume", "", "use --resume"),
    Without("initial_epoch", None, "use --resume"),
    Without("initial_step", None, "use --resume"),
    Without("skip_until_initial_step", False, "use --resume"),
    Without("resume_from_huggingface", False, _HUB),
    Without("huggingface_token", "", _HUB, secret=True),
    Without("huggingface_*", "", _HUB),
    Without("async_upload", False, _HUB),
    Without("sample_at_first", False, "samples begin with the first interval"),
    Without("logging_dir", "", "everything of a run is in its folder below runs_dir"),
    Without("log_with", "", _WANDB),
    Without("log_*", "", _WANDB),
    Without("wandb_api_key", "", _WANDB, secret=True),
    Without("wandb_run_name", "", _WANDB),
    Without("use_wandb", False, _WANDB),
    Without("metadata_description", "", "set model_title, model_author and model_license"),
    Without("metadata_tags", "", "set model_title, model_author and model_license"),
    Without("training_comment", "", "set model_title, model_author and model_license"),
    Without("no_metadata", False, "Tandem's files say how they were made; pictures' folders only if you ask for it"),
    Without("console_log_*", None, "the run's log has what is needed"),
    Without("output_config", False, "the run folder holds the config"),
    Without("config_file", ANY, "the file itself"),
    Without("tokenizer_cache_dir", None, "set HF_HOME"),
    Without("debug_dataset", False, "the Data page shows the pictures"),
    Without("dataset_class", None, "Tandem has one kind of data set"),
    Without("conditioning_data_dir", "", "put each mask beside its picture: cat.jpg has cat-masklabel.png"),
    Without("alpha_mask", False, "put each mask beside its picture: cat.jpg has cat-masklabel.png"),
    Without("validation_*", None, "set validation_split and validate_every"),
    Without("validate_every_n_*", None, "set validation_split and validate_every"),
    Without("max_validation_steps", None, "all validation pictures are measured"),
    Without("wavelet_loss*", None, "Tandem has no such loss"),
    Without("guidance_scale", 3.5, _FLOW),
    Without("discrete_flow_shift", 3, _FLOW),
    Without("timestep_sampling", "sigma", _FLOW),
    Without("sigmoid_scale", 1, _FLOW),
    Without("model_prediction_type", "sigma_scaled", _FLOW),
    Without("weighting_scheme", "logit_normal", _FLOW),
    Without("logit_mean", 0, _FLOW),
    Without("logit_std", 1, _FLOW),
    Without("mode_scale", 1.29, _FLOW),
    Without("apply_t5_attn_mask", False, _FLOW),
    Without("clip_[lg]", "", _FLOW),
    Without("t5xxl", "", _FLOW),
    Without("t5xxl_*", None, _FLOW),
    Without("ae", "", _FLOW),
    Without("flux1_*", "", _FLOW),
    Without("sd3_*", None, _FLOW),
    Without("save_clip", False, _FLOW),
    Without("save_t5xxl", False, _FLOW),
    Without("train_blocks", "all", _FLOW),
    Without("train_double_block_indices", "all", _FLOW),
    Without("train_single_block_indices", "all", _FLOW),
    Without("train_t5xxl", False, _FLOW),
    Without("in_json", "", "write the captions beside the pictures, or as metadata.jsonl: see docs/data.md"),
)
