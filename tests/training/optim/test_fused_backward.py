"""The optimizer's step in the backward: the same bits, less memory, and the steps that must not count."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from modules.config import TrainConfig, explain
from modules.config.sections.optimizers import OPTIMIZERS
from modules.distributed import Weights
from modules.training.device.precision import Precision
from modules.training.optim.fused_backward import FusedBackward
from modules.training.optim.optimizers import GuardedStep, build_optimizer
from modules.training.optim.per_parameter_step import PerParameterStep, optimizer_weights
from modules.training.step.memory_guard import OutOfMemory
from tests.runs import Run, same_state, same_tensors, tiny_config, train_alone

CPU = torch.device("cpu")
ON: dict[str, object] = {"max_grad_norm": None, "global_batch_size": None, "fused_backward": True}
PAIR_JOBS: dict[str, dict[str, object]] = {"fused backward": {**ON, "world_size": None}}
OFF = {**ON, "fused_backward": False}
ALONE = [name for name, kind in OPTIMIZERS.items() if kind.per_parameter_step]


def fused(model: nn.Module, **settings: object) -> FusedBackward:
    config = TrainConfig.model_validate({"learning_rate": 0.1, **settings})
    weights = Weights(model)
    held = optimizer_weights(weights.local)
    optimizer = build_optimizer([{"params": list(held.values())}], config)
    single = PerParameterStep(optimizer, weights.local, held, seed=0)
    return FusedBackward(GuardedStep(optimizer, weights, Precision("fp32", CPU).scaler, None, single), weights)


@pytest.mark.parametrize("name", [*ALONE, "adamw, not fused", "bf16"])
def test_a_run_ends_in_the_same_bits(images: Path, tmp_path: Path, name: str) -> None:
    if name.endswith("_8bit"):
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is optional and not installed")
    settings: dict[str, object] = {"optimizer": name, "max_steps": 5, "learning_rate_factors": "first = 0.5"}
    if name == "adamw, not fused":
        settings |= {"optimizer": {"name": "adamw", "fused": False}, "ema": True, "gradient_checkpointing": True}
    if name == "bf16":
        settings |= {"optimizer": "adamw", "precision": "bf16", "stochastic_rounding": True}
    runs = []
    for each in (OFF, ON):
        config = tiny_config(images, tmp_path / str(each["fused_backward"]), **settings, **each)
        code, run = train_alone(config)
        assert code == 0, run.failure(0)
        runs.append(run)
    assert same_state(runs[0].state, runs[1].state)
    assert runs[0].losses == runs[1].losses
    norms = [[event["grad_norm"] for event in run.events("step")] for run in runs]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_bits(images: Path, tmp_path: Path) -> None:
    settings = {**ON, "max_steps": 4, "backup_every": "2 steps", "backups_kept": 9, "optimizer": "adafactor"}
    code, whole = train_alone(tiny_config(images, tmp_path / "whole", **settings))
    assert code == 0, whole.failure(0)
    backup = str(whole.folder.backup_dir / "step-000002")
    code, again = train_alone(tiny_config(images, tmp_path / "again", **settings), backup)
    assert code == 0, again.failure(0)
    assert same_state(again.state, whole.state)


def test_few_gradients_are_in_memory_at_a_time() -> None:
    """Of eight layers of 4 KiB, one gradient at a time, where an ordinary backward has all."""
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(8)))
    most = {}
    for mode in ("step", "discard", "add"):
        backward = fused(model)
        live: list[int] = []

        def count(_: object, live: list[int] = live) -> None:
            """Called when a gradient is known and not yet where it is kept."""
            live.append(sum(w.grad.nbytes for w in model.parameters() if w.grad is not None))

        hooks = [weight.register_hook(count) for weight in model.parameters()]
        loss = model(torch.ones(2, 32)).square().mean()
        if mode == "step":
            backward.step(loss, [], 0)
        elif mode == "discard":
            with backward.discarding():
                loss.backward()
        else:
            loss.backward()
        most[mode] = max(live)
        if mode != "add":
            assert all(weight.grad is None for weight in model.parameters())
        for hook in hooks:
            hook.remove()
    assert most["step"] == most["discard"] == 0, "freed before the next layer's gradient exists"
    assert most["add"] >= 7 * 4096


@pytest.mark.parametrize("optimizer", ["adamw", "lion", {"name": "sgd", "fused": True}], ids=str)
def test_what_is_not_finite_changes_nothing(optimizer: object) -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    backward = fused(model, optimizer=optimizer)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    backward.step(model(torch.full((1, 3), math.inf)).sum(), [], 0)
    assert not math.isfinite(backward.finish())
    assert same_tensors(before, dict(model.named_parameters()))
    loss = model(torch.ones(1, 3)).sum() + (model[0].weight * 0).sqrt().sum() * 0  # 0 x inf in the first layer's only
    assert math.isfinite(loss.item())
    backward.step(loss, [], 1)
    assert not math.isfinite(backward.finish())
    assert torch.equal(before["0.weight"], model[0].weight)
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_skipped_steps_are_skipped_and_reported(images: Path, tmp_path: Path) -> None:
    settings = {**ON, "family_options": {"faults": ["nan:0:3"]}}
    code, run = train_alone(tiny_config(images, tmp_path / "on", **settings))
    assert code == 0, run.failure(0)
    assert math.isnan(run.losses[2])
    assert "Step 3: the gradient is not finite" in run.warnings
    code, other = train_alone(tiny_config(images, tmp_path / "off", **{**settings, "fused_backward": False}))
    assert code == 0
    assert same_state(run.state, other.state)


def test_memory_that_runs_out_within_a_step_ends_the_run() -> None:
    """Some weights have their step by then, so it cannot be repeated in smaller pieces."""
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    backward = fused(model)

    def fail(_: object) -> None:
        raise torch.OutOfMemoryError

    model[0].weight.register_hook(fail)
    with pytest.raises(OutOfMemory, match="a backward with fused_backward, which had updated some weights"):
        backward.step(model(torch.ones(1, 3)).sum(), [], 0)


@pytest.mark.slow
@pytest.mark.xdist_group("pair")
def test_several_processes_are_refused(pair: dict[str, Run]) -> None:
    run = pair["fused backward"]
    assert "fused_backward is true, but there are 2 processes" in run.failure(0)
    assert "Traceback" not in run.failure(0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_grad_norm": 1.0}, "max_grad_norm is 1, and the norm is known only when all gradients are; leave"),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4, which keeps all gradients"),
        ({"global_batch_size": 64, "batch_size": 2}, "global_batch_size 64 is above batch_size 2"),
        ({"enable_multi_gpu": True, "world_size": 2}, "gradients of several GPUs are summed before"),
        ({"precision": "fp16"}, "precision is fp16, whose loss scale"),
        (
            {"optimizer": "prodigy"},
            "the optimizer prodigy needs the gradients of all weights at once; use one of adamw",
        ),
        ({"histograms_every": "5 steps", "tensorboard": True}, "histograms_every is 5 steps, and no gradient is left"),
    ],
)
def test_what_it_does_not_go_with_is_said(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({**ON, **settings})
    assert any(said in sentence for sentence in explain(caught.value)), explain(caught.value)
