"""All runs of two ranks that the tests look at, done one after the other by one pair of processes."""

from __future__ import annotations

from pathlib import Path

from modules.config import TrainConfig
from tests.runs import ROOT, Job, Run, group_settings, tiny_config, train_alone, train_group

# Waits that are long for a busy test machine and short for a hang.
PATIENCE = {"startup_timeout_s": 90, "step_timeout_s": 60}
PARITY = {"precision": "fp64", "max_steps": 50}
TOUCHY = {"family_options": {"dropout": 0.2, "batch_norm": True}, "ema": True, "max_steps": 10, "batch_size": 3}

DRAWING = {
    **TOUCHY,
    "max_steps": 3,
    "broadcast_buffers": False,
    "sample_every": "2 steps",
    "samples": [{"prompt": f"disc {n}", "width": 16 + 8 * n, "height": 24, "seed": n} for n in range(5)],
}

# an adapter in every layer, of two parts of which one has a rate of its own and stops within the run
ADAPTED: dict[str, object] = {
    "family": str(ROOT / "tests" / "parts_family.py"),
    "precision": "fp64",
    "max_steps": 16,
    "lora_rank": 3,
    "lora_alpha": 2.0,
    "lora_targets": "all",
    "parts": [{"part": "unet"}, {"part": "text_encoder", "learning_rate": 0.003, "stop_after": "9 steps"}],
}
ADAPTERS: dict[str, dict[str, object]] = {
    "lora": {**ADAPTED, "method": "lora"},
    "dora": {**ADAPTED, "method": "lora", "lora_weight_decompose": True},
    "embedding": {**ADAPTED, "method": "embedding", "embedding_vectors": 3},
    "parts": ADAPTED,
}
SHARDED_ADAPTERS = {f"sharded {name}": {**job, "training_mode": "fully_sharded"} for name, job in ADAPTERS.items()}
TOUCHY_LORA: dict[str, object] = {
    **ADAPTERS["lora"],
    "precision": "fp32",
    "lora_dropout": 0.2,
    "ema": True,
    "batch_size": 3,
}

JOBS: dict[str, dict[str, object]] = {
    "fp64": {**PARITY, "family_options": {"record": "two"}},
    "fp64 accumulated": {
        **PARITY,
        "batch_size": 2,
        "gradient_accumulation_steps": 3,
        "family_options": {"record": "two accumulated"},
    },
    "fp32": {"max_steps": 50},
    "knobs": {
        **PARITY,
        "find_unused_parameters": True,
        "bucket_cap_mb": 1,
        "gradient_as_bucket_view": False,
        "broadcast_buffers": False,
    },
    "static graph": {**PARITY, "static_graph": True},
    "fp16 exchange": {"gradient_compression": "fp16"},
    "powersgd": {"gradient_compression": "powersgd", "powersgd_start_step": 2},
    "bf16 exchange": {"gradient_compression": "bf16"},
    "sync_batch_norm": {"sync_batch_norm": True},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "uninterrupted": TOUCHY,
    "half": {**TOUCHY, "max_steps": 4},
    "out of memory": {
        "max_steps": 40,
        "family_options": {"faults": ["out_of_memory:1:5"], "record": "out of memory"},
    },
    "never enough memory": {"family_options": {"faults": ["out_of_memory:1:4+"]}},
    "nan once": {"family_options": {"faults": ["nan:1:4"], "record": "nan once"}},
    "nan forever": {
        "max_steps": 30,
        "backup_every": "2 steps",
        "max_nonfinite_steps": 3,
        "family_options": {"faults": ["nan:0:6+"]},
    },
    "patience": {
        "max_steps": 40,
        "learning_rate": 3.0,
        "validation_split": 0.2,
        "validate_every": "2 steps",
        "early_stopping_patience": 2,
    },
    "scaled": {"global_batch_size": None, "batch_size": 2, "lr_scaling": "linear", "max_steps": 3},
    "one encodes": {"distributed_data_loading": False, "max_steps": 1, "cache_dir": "cache of one"},
    "drop_last": {"drop_last": True, "max_steps": None, "epochs": 2},
    "slow rank": {
        "max_steps": 130,
        "family_options": {"faults": ["slow:1:1+", "loader_slow:0:1+", "loader_slow:1:1+"]},
        "batch_size": 1,
        "global_batch_size": 2,
    },
    "samples of one": DRAWING,
    "samples of all": {**DRAWING, "share_sampling": True},
    "a sample fails": {
        **DRAWING,
        "samples": [{"prompt": "a disc"}, {"prompt": "cannot be drawn"}],
        "share_sampling": True,
    },
    **ADAPTERS,
    **SHARDED_ADAPTERS,
    "lora uninterrupted": TOUCHY_LORA,
    "half a lora": {**TOUCHY_LORA, "max_steps": 6},
    "small and frozen": {
        **ADAPTERS["lora"],
        "precision": "bf16",
        "parts": [{"part": "unet", "weights": "bf16"}],
        "gradient_checkpointing": True,
    },
    "late": {**PARITY, "max_steps": 20, "cache_dir": "cache of two"},
}


def run_all(pictures: Path, place: Path) -> dict[str, Run]:
    """Every job of the table, then the runs that continue others."""
    configs = {name: _config(pictures, place, name, settings) for name, settings in JOBS.items()}
    jobs = {name: Job(config) for name, config in configs.items()}
    jobs["half"] = Job(configs["half"])
    jobs["resumed"] = Job(configs["half"].model_copy(update={"max_steps": TOUCHY["max_steps"]}), "latest")
    jobs["lora resumed"] = Job(configs["half a lora"].model_copy(update={"max_steps": ADAPTED["max_steps"]}), "latest")
    # seven steps on one rank, in the middle of an epoch, then on two
    code, _ = train_alone(tiny_config(pictures, place, run_name="grows", **{**PARITY, "max_steps": 7}))
    assert code == 0
    jobs["grown"] = Job(_config(pictures, place, "grows", {**PARITY, "max_steps": 20}), "latest")
    return train_group(2, jobs)


def _config(pictures: Path, place: Path, name: str, settings: dict[str, object]) -> TrainConfig:
    options = settings.get("family_options", {})
    assert isinstance(options, dict)
    if "record" in options:
        folder = place / str(options["record"])
        folder.mkdir()
        settings = {**settings, "family_options": {**options, "record": str(folder)}}
    if "cache_dir" in settings:
        settings = {**settings, "cache_dir": str(place / str(settings["cache_dir"]))}
    run_name = name.replace(" ", "-")
    return tiny_config(pictures, place, **{**group_settings(2), **PATIENCE, "run_name": run_name, **settings})
