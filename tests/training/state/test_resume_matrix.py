"""A resumed run is the uninterrupted one, bit for bit: with every optimizer, schedule, precision and method, whose
settings are spread over the cases so that each is in one of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, get_args

import pytest

from modules.config import TrainConfig
from modules.config.sections.optimizers import OPTIMIZERS
from modules.training.studies.parity import weight_difference
from tests.pair_jobs import ADAPTED, ADAPTERS
from tests.runs import Run, same_state, tiny_config, train_alone

# 41 images: an epoch is 5 steps of 8 and one of 1, so these runs end in the second epoch, and step 4 is in the first
STEPS, STOPPED_AT = 9, 4
MOST: dict[str, object] = {"dropout": 0.2, "batch_norm": True}
CAPTIONS: dict[str, object] = {"tag_shuffle": True, "tag_dropout": 0.3, "caption_source": "txt", "repeats": 1.5}
AUGMENTED: dict[str, object] = {
    "horizontal_flip": True,
    "crop_jitter": True,
    "image_variations": 3,
    "random_rotate": 20,
    "random_saturation": 0.5,
    "fixed_hue": 0.3,
}
CASES: dict[str, dict[str, Any]] = {
    # a gradient that is not finite makes the loss scale fall in the second step
    "adamw fp16": {
        "optimizer": "adamw",
        "precision": "fp16",
        "scheduler": "cosine_with_restarts",
        "scheduler_cycles": 2,
        "warmup_steps": 2,
        "ema": True,
        "batch_size": 3,
        "family_options": {**MOST, "faults": ["nan:0:5"]},
    },
    "adam bf16": {
        "optimizer": {"name": "adam", "weight_decay": 0.1, "fused": False},
        "precision": "bf16",
        "scheduler": "linear",
        "min_learning_rate_factor": 0.1,
        "concepts": [CAPTIONS],
        "caption_dropout": 0.3,
    },
    "sgd": {
        "optimizer": {"name": "sgd", "nesterov": True, "weight_decay": 0.01},
        "scheduler": "polynomial",
        "scheduler_power": 2.0,
        "family_options": MOST,
        "concepts": [AUGMENTED],
        "max_grad_norm": None,
        "drop_last": True,
        "validation_split": 0.2,
        "validate_every": "3 steps",
        "restore_best": True,
    },
    "adafactor": {
        "optimizer": {"name": "adafactor", "beta1": 0.9, "scale_parameter": True},
        "scheduler": "constant",
        "warmup_fraction": 0.6,
        "family_options": MOST,
    },
    "custom": {
        "optimizer": {"name": "custom", "target": "torch.optim.NAdam", "arguments": "decoupled_weight_decay = true"},
        "scheduler": {
            "name": "custom",
            "target": "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts",
            "arguments": "T_0 = 3",
        },
        "warmup_steps": 2,
        "learning_rate_factors": "first = 0.5",
        "family_options": MOST,
    },
    "lion": {
        "optimizer": "lion",
        "scheduler": "cosine",
        "family_options": MOST,
        "ema": True,
        "ema_decay": 0.5,
        "ema_update_every": 3,
        "ema_on_cpu": True,
    },
    "prodigy": {
        "optimizer": {"name": "prodigy", "safeguard_warmup": True, "bias_correction": True, "weight_decay": 0.01},
        "learning_rate": 1.0,
        "warmup_steps": 3,
    },
    "came": {"optimizer": "came", "learning_rate_factors": "first = 0.5", "decay_norms_and_biases": False},
    "schedule-free": {
        "optimizer": {"name": "schedule_free_adamw", "weight_decay": 0.1},
        "warmup_steps": 3,
        "validation_split": 0.2,
        "validate_every": "3 steps",
    },
    "muon": {"optimizer": "muon", "scheduler": "rex", "family_options": MOST, "ema": True, "concepts": [CAPTIONS]},
    "flash_adamw": {"optimizer": {"name": "flash_adamw", "weight_decay": 0.1}, "family_options": MOST},
    "lora": {**ADAPTERS["lora"], "precision": "fp16", "ema": True, "max_steps": STEPS, "batch_size": 3},
    "dora in half": {
        **ADAPTERS["dora"],
        "precision": "bf16",
        "parts": [{"part": "unet", "weights": "bf16"}, {"part": "text_encoder", "stop_after": "6 steps"}],
        "lora_plus_ratio": 16,
        "lora_dropout": 0.2,
        "max_steps": STEPS,
    },
    "lokr": {**ADAPTERS["lokr"], "precision": "bf16", "ema": True, "max_steps": STEPS},
    "embedding": {**ADAPTERS["embedding"], "precision": "fp32", "max_steps": STEPS, "optimizer": "prodigy"},
    "text training": {**ADAPTED, "precision": "bf16", "optimizer": "adafactor", "max_steps": STEPS, "ema": True},
}
_CHOSEN = [case.get("optimizer", "adamw") for case in CASES.values()]
_NAMES = {each["name"] if isinstance(each, dict) else each for each in _CHOSEN}
CASES |= {name: {"optimizer": name} for name in OPTIMIZERS if name not in _NAMES}


def config_of(case: str, images: Path, place: Path, **more: object) -> TrainConfig:
    settings = {"max_steps": STEPS, "learning_rate": 0.001, **CASES[case], **more}
    settings["concepts"] = [{"path": str(images), **concept} for concept in settings.get("concepts", [{}])]
    return tiny_config(images, place, backup_every=f"{STOPPED_AT} steps", backups_kept=9, **settings)


def interrupted(run: Run) -> None:
    """Leave the run as it was when it was killed some steps after its backup."""
    for backup in run.folder.backup_dir.iterdir():
        if backup.name != f"step-{STOPPED_AT:06d}":
            shutil.rmtree(backup)


def steps_of(run: Run) -> list[dict[str, object]]:
    """What the events say of each step, except for the time it took."""
    timed = ("t", "samples_per_s", "eta_s")
    return [{name: value for name, value in event.items() if name not in timed} for event in run.events("step")]


def test_every_schedule_precision_and_method_is_in_a_case() -> None:
    settings = [TrainConfig.model_validate({n: v for n, v in c.items() if n != "concepts"}) for c in CASES.values()]
    assert {each.optimizer.name for each in settings} == set(OPTIMIZERS), "those without a case get one above"
    assert {each.scheduler for each in settings} == set(get_args(TrainConfig.model_fields["scheduler"].annotation))
    assert {each.precision for each in settings} >= {"fp32", "fp16", "bf16"}
    assert {each.method for each in settings} == set(get_args(TrainConfig.model_fields["method"].annotation))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(images: Path, tmp_path: Path, case: str) -> None:
    if case.endswith("_8bit"):
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is optional and not installed")
    code, run = train_alone(config_of(case, images, tmp_path))
    assert code == 0, run.failure(0)
    whole, steps, metrics = run.state, steps_of(run), [event["loss"] for event in run.events("validation")]
    assert whole.position.step == STEPS
    scaler: dict[str, Any] = dict(whole.scaler)
    assert "fp16" not in case or scaler["scale"] < 65536
    interrupted(run)
    # the fault is behind: the resumed run counts its forwards anew
    options = {n: v for n, v in CASES[case].get("family_options", {}).items() if n != "faults"}
    code, run = train_alone(config_of(case, images, tmp_path, family_options=options), "latest")
    assert code == 0, run.failure(0)
    assert "Settings have changed" not in run.warnings
    assert same_state(run.state, whole)
    assert run.state.scaler == whole.scaler
    assert run.state.position == whole.position
    assert steps_of(run)[STEPS:] == steps[STOPPED_AT:]
    assert [event["loss"] for event in run.events("validation")][len(metrics) :] == metrics[STOPPED_AT // 3 :]


@pytest.mark.slow
def test_other_micro_batches_only_round_otherwise(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The effective batch is that of the run: another batch size adds the same samples in another order."""
    settings: dict[str, object] = {
        "precision": "fp64",
        "global_batch_size": None,
        "family_options": {"dropout": 0.2},
        "max_steps": STEPS,
        "backup_every": f"{STOPPED_AT} steps",
    }
    _, run = train_alone(tiny_config(images, tmp_path, batch_size=8, **settings))
    whole = run.state
    interrupted(run)
    smaller = {"batch_size": 3, "gradient_accumulation_steps": 2}
    code, run = train_alone(tiny_config(images, tmp_path, **settings, **smaller), "latest")
    assert code == 0, run.failure(0)
    assert "The effective batch stays 8, with which this run started; batch_size x" in capsys.readouterr().out
    assert run.state.position == whole.position
    assert 0 < weight_difference(run.state, whole) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheduler": "linear", "max_steps": 2 * STEPS}, "18 steps instead of 9, over which its learning rate is"),
        ({"scheduler": "linear", "epochs": 1}, "that of step 5 is 0.00333, where it would have been 0.00556"),
        ({"max_steps": 2 * STEPS}, ""),
    ],
)
def test_another_length_says_what_it_does_to_the_learning_rate(
    images: Path, tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    constant = {"scheduler": settings.get("scheduler", "constant"), "learning_rate": 0.01}
    _, run = train_alone(tiny_config(images, tmp_path, max_steps=STEPS, backup_every="4 steps", **constant))
    interrupted(run)
    longer = tiny_config(images, tmp_path, **{"max_steps": STEPS, **constant, **settings})
    code, run = train_alone(longer, "latest")
    assert code == 0, run.failure(0)
    assert said in run.warnings
    assert bool(run.warnings) is bool(said)
