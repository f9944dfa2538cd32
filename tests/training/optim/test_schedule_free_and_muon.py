"""Optimizers that average the weights or orthogonalise their steps; that every optimizer learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from pytorch_optimizer import ScheduleFreeAdamW
from safetensors.torch import load_file
from torch import nn

from modules.config import TrainConfig, explain
from modules.config.sections.optimizers import OPTIMIZERS
from modules.distributed import Weights
from modules.training.optim.muon import Muon, orthogonalised
from modules.training.optim.optimizers import build_optimizer, check_optimizer
from modules.training.optim.schedule_free import ScheduleFreeWeights
from tests.runs import same_tensors, tiny_config, train_alone


@pytest.mark.parametrize("name", [name for name, kind in OPTIMIZERS.items() if kind.implementation])
def test_every_optimizer_learns(name: str) -> None:
    rate = {"sgd": 0.05, "prodigy": 1.0, "lion": 0.01, "lion_8bit": 0.01}.get(name, 0.05)
    config = TrainConfig.model_validate({"optimizer": name, "learning_rate": rate})
    if name.endswith("_8bit"):
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is optional and not installed")
    check_optimizer(config, None)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)), torch.randn(64, 6)
    wanted = torch.stack([x[:, 0] - x[:, 1], x[:, 2] * 0.5], 1)
    optimizer = build_optimizer(list(model.parameters()), config)
    losses = []
    for _ in range(60):
        loss = (model(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2, losses[::10]


def test_the_average_is_that_of_the_optimizer_and_leaves_every_bit() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = ScheduleFreeAdamW(model.parameters(), lr=0.1)
    weights = Weights(model)
    average = ScheduleFreeWeights.of(optimizer, weights)
    assert average is not None
    for _ in range(3):
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with average.in_place():
        inside = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    assert same_tensors(own, dict(model.named_parameters()))
    optimizer.eval()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(inside[name], weight.detach())
        assert (inside[name] - own[name]).abs().max() > 1e-3


def test_a_run_saves_and_validates_the_average(images: Path, tmp_path: Path) -> None:
    """`restore_best` brings the averaged weights of the best validation back."""
    settings = {"optimizer": "schedule_free_adamw", "learning_rate": 0.05, "max_steps": 4, "validation_split": 0.2}
    settings |= {"validate_every": "4 steps", "restore_best": True}
    code, run = train_alone(tiny_config(images, tmp_path, **settings))
    assert code == 0, run.failure(0)
    state = run.state
    (file,) = run.folder.model_dir.rglob("*.safetensors")
    saved = load_file(file)
    for name, y in state.weights.items():
        z = state.optimizer.tensors.get(f"{name}/z")
        if z is not None:
            torch.testing.assert_close(saved[name], torch.lerp(y, z, 1 - 1 / 0.9))
            assert not torch.equal(saved[name], y)
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({"optimizer": "schedule_free_adamw", "ema": True})
    assert "ema is true, but the optimizer schedule_free_adamw averages" in explain(caught.value)[0]


def test_steps_of_muon_are_orthogonal_and_as_large_as_adams() -> None:
    torch.manual_seed(0)
    for shape in ((5, 9), (9, 5)):
        singular = torch.linalg.svdvals(orthogonalised(torch.randn(shape), 5))
        assert ((singular > 0.6) & (singular < 1.3)).all()
    weight = nn.Parameter(torch.zeros(8, 2, 3, 3))
    bias = nn.Parameter(torch.zeros(8))
    optimizer = Muon([weight, bias], lr=0.1, weight_decay=0.0)
    weight.grad, bias.grad = torch.randn(8, 2, 3, 3), torch.randn(8)
    optimizer.step()
    assert weight.detach().square().mean().sqrt().item() == pytest.approx(0.02, rel=0.25)  # 0.2 x the learning rate
    torch.testing.assert_close(bias.detach(), -0.1 * bias.grad.sign())
