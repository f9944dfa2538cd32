"""The learning rate at every step of a short run, against the peers' own functions called as the peers call them.

kohya-ss/sd-scripts at 48d368f: library/train_util.py, get_scheduler_fix (of transformers). bghira/SimpleTuner at
bc8e6ab: helpers/training/custom_schedule.py, get_lr_scheduler (of diffusers; its own Cosine has a closed form).
ostris/ai-toolkit at 27a03a9: toolkit/scheduler.py (of torch and diffusers). tdrussell/diffusion-pipe at 8f83dbf:
train.py (of torch). Nerogar/OneTrainer at 23df383: modules/util/create.py, create_lr_scheduler, whose lambdas are the
formulas of diffusers, above a lowest factor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import diffusers.optimization as of_diffusers
import pytest
import torch
import transformers.optimization as of_transformers
from torch import nn
from torch.optim import lr_scheduler as of_torch

from modules.importers import import_file
from tests.importers.rates import rates

STEPS, WARMUP, RATE = 40, 8, 2e-5
Build = Callable[[torch.optim.Optimizer], Any]
_WARM: dict[str, Any] = {"num_warmup_steps": WARMUP}
_WHOLE: dict[str, Any] = {**_WARM, "num_training_steps": STEPS}


def lowest(factor: float, build: Build) -> Build:
    """OneTrainer's apply_min_factor."""

    def made(optimizer: torch.optim.Optimizer) -> of_torch.LambdaLR:
        [own] = build(optimizer).lr_lambdas
        optimizer.param_groups[0]["lr"] = RATE
        return of_torch.LambdaLR(
            optimizer, lambda step: own(step) if step < WARMUP else factor + (1 - factor) * own(step)
        )

    return made


def after_warmup(optimizer: torch.optim.Optimizer, of_run: Build) -> of_torch.SequentialLR:
    """diffusion-pipe's."""
    schedule = of_run(optimizer)
    warmup = of_torch.LinearLR(optimizer, start_factor=1 / WARMUP, total_iters=WARMUP)
    return of_torch.SequentialLR(optimizer, schedulers=[warmup, schedule], milestones=[WARMUP])


def rex(optimizer: torch.optim.Optimizer) -> of_torch.LambdaLR:
    """OneTrainer's lr_lambda_rex, after its warm-up."""

    def factor(step: int) -> float:
        progress = (step - WARMUP) / (STEPS - WARMUP)
        return (1 - progress) / ((1 - 0.9) + (0.9 * (1 - progress)))

    return of_torch.LambdaLR(optimizer, lambda step: step / WARMUP if step < WARMUP else factor(step))


def wave(fall: int, low: float) -> Build:
    """SimpleTuner's Cosine.get_lr, which rounds down to 1e-9; its T_cur is the negated number of the step."""
    shape = lambda step: low + (RATE - low) * (1 + math.cos(math.pi * -step / fall)) / 2  # noqa: E731
    return partial(of_torch.LambdaLR, lr_lambda=lambda step: shape(step) / RATE)


def kohya(**settings: object) -> dict[str, object]:
    return {
        "pretrained_model_name_or_path": "a/b", "network_module": "networks.lora", "max_train_steps": STEPS,
        "learning_rate": RATE, **settings,
    }  # fmt: skip


def simple_tuner(**settings: object) -> dict[str, object]:
    return {
        "model_type": "lora", "model_family": "flux", "pretrained_model_name_or_path": "a/b", "learning_rate": RATE,
        "max_train_steps": STEPS, "num_train_epochs": 0, "optimizer": "adamw_bf16", "data_backend_config": "a.json",
        **settings,
    }  # fmt: skip


def ai_toolkit(**train: object) -> dict[str, object]:
    process = {
        "type": "sd_trainer", "network": {"type": "lora", "linear": 4}, "model": {"name_or_path": "a/b", "is_xl": True},
        "train": {"lr": RATE, "steps": STEPS, **train},
    }  # fmt: skip
    return {"job": "extension", "config": {"name": "a", "process": [process]}}


def onetrainer(**settings: object) -> dict[str, object]:
    return {
        "training_method": "LORA", "model_type": "STABLE_DIFFUSION_XL_10_BASE", "base_model_name": "a/b",
        "concepts": [], "samples": [], "learning_rate": RATE, "learning_rate_warmup_steps": WARMUP, **settings,
    }  # fmt: skip


def diffusion_pipe(**settings: object) -> dict[str, object]:
    return {
        "output_dir": "out", "dataset": "dataset.toml", "epochs": 1, "model": {"type": "sdxl", "checkpoint_path": "a"},
        "optimizer": {"type": "adamw", "lr": RATE}, "adapter": {"type": "lora", "rank": 4}, **settings,
    }  # fmt: skip


_KOHYA: Any = of_transformers.TYPE_TO_SCHEDULER_FUNCTION
_KINDS: Any = vars(of_transformers)["SchedulerType"]
_GENERIC: dict[str, Any] = {**_WHOLE, "num_cycles": 1, "power": 0.8}
CASES: dict[str, tuple[dict[str, object], Build]] = {
    "kohya constant": (kohya(), of_transformers.get_constant_schedule),
    "kohya constant_with_warmup": (
        kohya(lr_scheduler="constant_with_warmup", lr_warmup_steps=WARMUP),
        partial(_KOHYA[_KINDS.CONSTANT_WITH_WARMUP], **_WARM),
    ),
    **{
        f"kohya {name}": (
            kohya(lr_scheduler=name, lr_warmup_steps=WARMUP / STEPS, **{"lr_scheduler_num_cycles": 3, **more}),
            partial(_KOHYA[_KINDS(name)], **_WHOLE, **arguments),
        )
        for name, arguments, more in (
            ("linear", {}, {}), ("cosine", {}, {}), ("cosine_with_restarts", {"num_cycles": 3}, {}),
            ("polynomial", {"power": 2.0}, {"lr_scheduler_power": 2}),
            ("cosine_with_min_lr", {"num_cycles": 0.5, "min_lr_rate": 0.1},
             {"lr_scheduler_min_lr_ratio": 0.1, "lr_scheduler_num_cycles": 1}),
        )
    },
    "kohya lr_scheduler_type": (
        kohya(lr_scheduler_type="CosineAnnealingLR", lr_scheduler_args=["T_max=9", "eta_min=1e-6"]),
        partial(of_torch.CosineAnnealingLR, T_max=9, eta_min=1e-6),
    ),
    **{
        f"SimpleTuner {name}": (
            simple_tuner(lr_scheduler=name, lr_warmup_steps=WARMUP),
            partial(of_diffusers.get_scheduler, name, **_GENERIC),
        )
        for name in ("constant_with_warmup", "linear")
    },
    "SimpleTuner polynomial": (
        simple_tuner(lr_scheduler="polynomial", lr_warmup_steps=WARMUP, lr_power=0.8, lr_end=4e-7),
        partial(of_diffusers.get_polynomial_decay_schedule_with_warmup, **_WHOLE, power=0.8, lr_end=4e-7),
    ),
    "SimpleTuner cosine": (simple_tuner(lr_scheduler="cosine", lr_warmup_steps=15, lr_end=4e-7), wave(15, 4e-7)),
    "ai-toolkit constant": (ai_toolkit(), partial(of_torch.ConstantLR, factor=1.0, total_iters=STEPS)),
    "ai-toolkit constant_with_warmup": (
        ai_toolkit(lr_scheduler="constant_with_warmup", lr_scheduler_params=_WARM),
        partial(of_diffusers.get_constant_schedule_with_warmup, **_WARM),
    ),
    "ai-toolkit linear": (ai_toolkit(lr_scheduler="linear"), partial(of_torch.LinearLR, total_iters=STEPS)),
    "ai-toolkit cosine": (
        ai_toolkit(lr_scheduler="cosine", lr_scheduler_params={"eta_min": 1e-6}),
        partial(of_torch.CosineAnnealingLR, T_max=STEPS, eta_min=1e-6),
    ),
    "ai-toolkit cosine_with_restarts": (
        ai_toolkit(lr_scheduler="cosine_with_restarts"), partial(of_torch.CosineAnnealingWarmRestarts, T_0=STEPS),
    ),
    **{
        f"OneTrainer {name}": (
            onetrainer(learning_rate_scheduler=name, learning_rate_cycles=3, learning_rate_min_factor=0.2),
            lowest(0.2 if name != "CONSTANT" else 0.0, build),
        )
        for name, build in (
            ("CONSTANT", partial(of_diffusers.get_constant_schedule_with_warmup, **_WARM)),
            ("LINEAR", partial(of_diffusers.get_linear_schedule_with_warmup, **_WHOLE)),
            ("COSINE", partial(of_diffusers.get_cosine_schedule_with_warmup, **_WHOLE)),
            ("REX", rex),
            ("COSINE_WITH_HARD_RESTARTS",
             partial(of_diffusers.get_cosine_with_hard_restarts_schedule_with_warmup, **_WHOLE, num_cycles=3)),
        )
    },
    "OneTrainer CUSTOM": (
        onetrainer(
            learning_rate_scheduler="CUSTOM", learning_rate_warmup_steps=0,
            custom_learning_rate_scheduler="torch.optim.lr_scheduler.StepLR",
            scheduler_params=[{"key": "step_size", "value": "7"}, {"key": "gamma", "value": "0.5"}],
        ),
        partial(of_torch.StepLR, step_size=7, gamma=0.5),
    ),
    "diffusion-pipe constant": (
        diffusion_pipe(warmup_steps=WARMUP),
        partial(after_warmup, of_run=partial(of_torch.ConstantLR, factor=1.0)),
    ),
    "diffusion-pipe linear": (
        diffusion_pipe(lr_scheduler="linear"),
        partial(of_torch.LinearLR, start_factor=1.0, end_factor=0.0, total_iters=STEPS),
    ),
    "diffusion-pipe cosine": (
        diffusion_pipe(lr_scheduler="cosine"), partial(of_torch.CosineAnnealingLR, T_max=STEPS, eta_min=1e-6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_step_has_the_peers_rate(tmp_path: Path, name: str) -> None:
    settings, build = CASES[name]
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = import_file(tmp_path / "config.json").config
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler, theirs = build(optimizer), []
    for _ in range(STEPS):
        theirs.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    ours = rates(config, STEPS)
    warmup = WARMUP if config.warmup_steps or config.warmup_fraction else 0
    assert ours[warmup:] == pytest.approx(theirs[warmup:], rel=1e-5)
    # the warm-up there starts at 0 or 1/8; here it starts at 1/9, so that no step is without a rate
    assert ours[:warmup] == pytest.approx(theirs[:warmup], abs=RATE / WARMUP)
