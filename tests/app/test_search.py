"""Finding settings by their names here and in other trainers."""

from __future__ import annotations

import pytest

from app.shell.search import search
from modules.config import TrainConfig, options
from modules.config.aliases import ALIASES, FORMER_NAMES, aliases

EVERY = [option for option in options(TrainConfig) if option.path not in ("version", "family_options")]

# Titles that a setting had up to 0.1.0 if its current title has other words.
FORMER_TITLES = {
    "aspect_ratio_bucketing": "Keep aspect ratios",
    "cache_only": "Only prepare the pictures",
    "cache_batch_size": "Prepared at once",
    "validation_split": "Validation share",
    "unmasked_weight": "Weight outside the mask",
    "prefetch_factor": "Batches ready ahead",
    "drop_last": "Drop the short step",
    "concepts.*.kind": "Used for",
    "concepts.*.caption_source": "Captions come from",
    "concepts.*.keep_tags": "Tags kept in front",
    "concepts.*.image_variations": "Variations kept per picture",
    "concepts.*.mask_suffix": "Mask file ending",
    "max_steps": "Stop after steps",
    "gradient_accumulation_steps": "Accumulate batches",
    "ema": "Average the model (EMA)",
    "gradient_checkpointing": "Save memory by recomputing",
    "max_nonfinite_steps": "Broken steps tolerated",
    "early_stopping_patience": "Stop when no better",
    "scheduler_power": "Curve of the fall",
    "optimizer.clip_threshold": "Update limit",
    "optimizer.scale_parameter": "Scale by weight size",
    "optimizer.d0": "First step size",
    "optimizer.d_coef": "Step size factor",
    "optimizer.safeguard_warmup": "Safe with warm-up",
    "lora_targets": "LoRA is added to",
    "embedding_init": "Begin with",
    "parts.*.train": "Train this part",
    "parts.*.learning_rate": "Its learning rate",
    "parts.*.stop_after": "Stop training it after",
    "parts.*.weights": "Format of frozen weights",
    "enable_multi_gpu": "Use several GPUs",
    "training_mode": "Mode",
    "device_ids": "GPUs",
    "use_torchrun": "Start with torchrun",
    "distributed_data_loading": "Share the preparation",
    "processes_per_node": "Processes on each machine",
    "on_machine_loss": "How machines meet",
    "max_restarts": "Restarts after a failure",
    "master_addr": "Address of the first machine",
    "lr_scaling": "Scale the learning rate",
    "find_unused_parameters": "Look for unused weights",
    "broadcast_buffers": "Share buffers",
    "bucket_cap_mb": "Transfer size",
    "static_graph": "Model never changes course",
    "gradient_as_bucket_view": "No second copy of gradients",
    "sync_batch_norm": "Shared BatchNorm",
    "gradient_compression": "Compress the exchange",
    "powersgd_start_step": "First step with PowerSGD",
    "fsdp_reshard_after_forward": "Give weights back after the forward",
    "fsdp_cpu_offload": "Keep weights in main memory",
    "fsdp_reduce_precision": "Precision of the summed gradients",
    "fsdp_whole_gradients": "Keep whole gradients while accumulating",
    "debug_distributed": "Record how processes talk",
    "startup_timeout_s": "Patience at the start",
    "step_timeout_s": "Patience in a step",
    "samples.*.enabled": "Draw this sample",
    "samples.*.steps": "Drawing steps",
    "runs_dir": "Folder for runs",
    "save_dtype": "Number format of saved files",
    "metadata_dataset": "Tell about the pictures",
}


def first(words: str) -> str:
    hits = search(words, variant="adamw")
    return hits[0].option.path if hits else ""


@pytest.mark.parametrize("option", EVERY, ids=lambda option: f"{option.path}-{option.variant}")
def test_every_setting_is_found_by_its_name_and_its_title(option: object) -> None:
    from modules.config import Option

    assert isinstance(option, Option)
    variant = option.variant or "adamw"
    for words in (option.name, option.title):
        hits = [hit.option.path for hit in search(words, variant=variant)]
        assert option.path in hits, (words, hits)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("lr", "learning_rate"),
        ("mixed_precision", "precision"),
        ("train_batch_size", "batch_size"),
        ("clip_grad_norm", "max_grad_norm"),
        ("device_indexes", "device_ids"),
        ("keep_tokens", "concepts.*.keep_tags"),
        ("nproc_per_node", "world_size"),
        ("Learning Rate Scaler", "lr_scaling"),
        ("MASTER_PORT", "initial_port"),
        ("cfg_scale", "samples.*.guidance_scale"),
        ("workspace_dir", "runs_dir"),
        ("network_module", "method"),
        ("BATCH size", "batch_size"),
        ("accumul", "gradient_accumulation_steps"),
        ("checkpointing memory", "gradient_checkpointing"),
    ],
)
def test_query_finds_the_setting(words: str, path: str) -> None:
    assert first(words) == path


def test_help_texts_are_searched_last() -> None:
    hits = [hit.option.path for hit in search("overflow")]
    assert hits == ["outer_compression", "max_nonfinite_steps"]


def test_empty_and_unknown_queries() -> None:
    assert search("") == []
    assert search("   ") == []
    assert search("zzzqqq") == []
    assert search("???") == []


def test_only_settings_of_the_chosen_optimizer_are_found() -> None:
    assert search("momentum", variant="sgd")[0].option.variant == "sgd"
    assert not [hit for hit in search("d_coef", variant="adamw") if hit.option.path == "optimizer.d_coef"]


def test_every_alias_belongs_to_a_setting() -> None:
    known = {option.path for option in options(TrainConfig)}
    assert set(ALIASES) <= known


def test_hit_names_its_alias() -> None:
    (hit, *_) = search("lr_warmup_steps")
    assert (hit.option.path, hit.alias) == ("warmup_steps", "lr_warmup_steps")


def test_names_of_older_files_are_aliases() -> None:
    for former, path in FORMER_NAMES.items():
        assert former in aliases(path)


def test_former_titles_lead_to_the_setting() -> None:
    for path, title in FORMER_TITLES.items():
        found = [hit.option.path for hit in search(title)]
        assert found[0] == path, (title, found)
