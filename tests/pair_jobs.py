"""Runs of two ranks: test files declare them in PAIR_JOBS, and one pair of processes trains all of them.

Starting processes takes most of the time of a small run. The fixture `pair` in tests/conftest.py has the runs by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.config import TrainConfig
from modules.run import RunFolder, request_command
from tests.runs import ROOT, Job, Run, group_settings, tiny_config, train_alone, train_group

# Long for a busy test machine, short for a hang.
TIMEOUTS = {"startup_timeout_s": 90, "step_timeout_s": 60}
STEPS = 14  # two epochs, the last step of which has one sample, and two steps of the next
PARITY = {"precision": "fp64", "max_steps": STEPS}
STATEFUL = {"family_options": {"dropout": 0.2, "batch_norm": True}, "ema": True, "max_steps": 10, "batch_size": 3}

# Declared by more than one file.
FP64_JOBS: dict[str, dict[str, object]] = {"fp64": {**PARITY, "family_options": {"record": "two"}}}
DDP_JOBS: dict[str, dict[str, object]] = {
    "ddp options": {
        **PARITY,
        "find_unused_parameters": True,
        "bucket_cap_mb": 1,
        "gradient_as_bucket_view": False,
        "broadcast_buffers": False,
    },
    "static graph": {**PARITY, "static_graph": True},
}

# Adapters in every layer of two submodules, one of which has its own learning rate and stops during the run.
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
    "lora": {**ADAPTED, "method": "lora", "lora_dropout": 0.2},
    "dora": {**ADAPTED, "method": "lora", "lora_weight_decompose": True},
    # some layers have whole factors, some products
    "lokr": {**ADAPTED, "method": "lora", "lora_algorithm": "lokr", "lora_rank": 1, "lora_rank_pattern": "fc1 = 9"},
    "embedding": {**ADAPTED, "method": "embedding", "embedding_vectors": 3},
    "parts": ADAPTED,
}
SHARDED_ADAPTERS = {f"sharded {name}": {**job, "training_mode": "fully_sharded"} for name, job in ADAPTERS.items()}


def run_all(images: Path, place: Path, declared: Mapping[str, Mapping[str, object]]) -> dict[str, Run]:
    """Train the jobs in their order: settings by name, where "ranks": 1, "resumes": NAME and "custom_sample": TEXT
    (asked for before the first step) are none."""
    jobs = {}
    for name, given in declared.items():
        settings = {key: value for key, value in given.items() if key not in ("ranks", "resumes", "custom_sample")}
        if given.get("ranks") == 1:
            code, _ = train_alone(tiny_config(images, place, run_name=name, **settings))
            assert code == 0
        else:
            config = _config(images, place, str(given.get("resumes", name)), settings)
            if "custom_sample" in given:
                request_command(RunFolder.create(config), "custom_sample", str(given["custom_sample"]))
            jobs[name] = Job(config, "latest" if {"resumes", "custom_sample"} & {*given} else None)
    return train_group(2, jobs)


def _config(images: Path, place: Path, name: str, settings: dict[str, object]) -> TrainConfig:
    options = settings.get("family_options", {})
    assert isinstance(options, dict)
    if "record" in options:
        folder = place / str(options["record"])
        folder.mkdir()
        settings = {**settings, "family_options": {**options, "record": str(folder)}}
    if "cache_dir" in settings:
        settings = {**settings, "cache_dir": str(place / str(settings["cache_dir"]))}
    if isinstance(concepts := settings.get("concepts"), list):
        settings = {**settings, "concepts": [{"path": str(images), **concept} for concept in concepts]}
    run_name = name.replace(" ", "-")
    return tiny_config(images, place, **{**group_settings(2), **TIMEOUTS, "run_name": run_name, **settings})
