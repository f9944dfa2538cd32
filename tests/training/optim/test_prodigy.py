"""Prodigy with a learning rate for each part of the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_optimizer import Prodigy as Reference
from torch import Tensor, nn

from modules.config import TrainConfig, learning_rate_scale
from modules.config.sections.optimizers import OPTIMIZERS
from modules.training.optim.optimizers import build_optimizer, set_learning_rate
from modules.training.state.plan import plan_run
from tests.runs import ROOT, Run, same_state, tiny_config, train_alone

SETTINGS = {"d0": 1e-3, "eps": 1e-12}
STEPS = 40


def distance(first: Tensor, second: Tensor) -> Tensor:
    """A loss of two weights, []."""
    target = torch.linspace(-1, 2, 12, dtype=torch.float64)
    return (first - target[:8]).square().sum() + (second.sum() - first[0] * 0.1).square() + second.pow(4).sum()


def trained(
    rates: tuple[float, float], factor: float = 1.0, *, swapped: bool = False, **settings: object
) -> tuple[Tensor, Tensor]:
    """Two weights, each in a group of its own, after some steps with `factor` times these rates."""
    config = TrainConfig.model_validate(
        {"optimizer": {"name": "prodigy", **SETTINGS, **settings}, "learning_rate": factor}
    )
    weights = [nn.Parameter(torch.full((size,), 0.3, dtype=torch.float64)) for size in (8, 4)]
    order = -1 if swapped else 1
    optimizer = build_optimizer([{"params": [weight]} for weight in weights[::order]], config)
    for _ in range(STEPS):
        set_learning_rate(optimizer, factor, rates[::order])
        distance(*weights).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights[0].detach(), weights[1].detach()


def reference(share: float, rate: float, **settings: Any) -> tuple[Tensor, Tensor]:
    """The same of pytorch_optimizer's Prodigy with one rate, if the second weight is `share` times one that it sees.

    A step of Prodigy has the same size in each weight (Mishchenko and Defazio 2023, arXiv:2306.06101, algorithm 3), so
    that the second weight then moves `share` times as far.
    """
    first, seen = (nn.Parameter(torch.full((n,), v, dtype=torch.float64)) for n, v in ((8, 0.3), (4, 0.3 / share)))
    optimizer = Reference([first, seen], lr=rate, **{**SETTINGS, **settings})
    for _ in range(STEPS):
        distance(first, seen * share).backward()
        optimizer.step()
        optimizer.zero_grad()
    return first.detach(), seen.detach() * share


@pytest.mark.parametrize(
    "settings", [{}, {"safeguard_warmup": True}, {"bias_correction": True, "d_coef": 0.5}], ids=str
)
@pytest.mark.parametrize(("share", "rate"), [(0.25, 1.0), (0.01, 0.5)])
def test_a_group_with_a_lower_rate_takes_smaller_steps(share: float, rate: float, settings: dict[str, Any]) -> None:
    found = trained((1.0, share), rate, **settings)
    for one, expected in zip(found, reference(share, rate, **settings), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-7, atol=1e-9)
    first, second = ((weight - 0.3).abs().max() for weight in found)
    assert first > 1e-3, "it has moved"
    assert second > 0


def test_the_order_of_the_groups_does_not_matter() -> None:
    """pytorch_optimizer takes the first group's rate for all."""
    for found, expected in zip(trained((1.0, 0.25), swapped=True), trained((1.0, 0.25)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # sums in single precision


def test_equal_rates_are_those_of_the_reference_to_the_last_bit() -> None:
    for found, expected in zip(trained((1.0, 1.0)), reference(1.0, 1.0), strict=True):
        assert torch.equal(found, expected)


def test_a_rate_of_zero_moves_nothing() -> None:
    for one in trained((0.0, 0.0), safeguard_warmup=True):
        assert torch.equal(one, torch.full_like(one, 0.3))


def test_weight_decay_follows_the_rate_of_its_group() -> None:
    settings = {"weight_decay": 0.5, "d0": 0.1}
    config = TrainConfig.model_validate({"optimizer": {"name": "prodigy", **settings}, "learning_rate": 1.0})
    weights = [nn.Parameter(torch.full((2,), 2.0, dtype=torch.float64)) for _ in range(2)]
    optimizer = build_optimizer([{"params": [weight]} for weight in weights], config)
    set_learning_rate(optimizer, 1.0, (1.0, 0.5))
    for weight in weights:
        weight.grad = torch.full((2,), 1e-20, dtype=torch.float64)  # nothing but the decay moves them
    optimizer.step()
    d_lr = 0.1
    for weight, rate in zip(weights, (1.0, 0.5), strict=True):
        assert weight[0].item() == pytest.approx(2.0 * (1 - 0.5 * d_lr * rate), rel=1e-9)


def test_the_rate_is_not_scaled_with_the_ranks() -> None:
    for name, kind in OPTIMIZERS.items():
        config = TrainConfig.model_validate({"optimizer": name, "learning_rate": 1.0, "lr_scaling": "linear"})
        expected = 1.0 if name == "prodigy" else 4.0
        assert kind.finds_step_size == (name == "prodigy")
        assert learning_rate_scale(config, 4) == expected
        plan = plan_run(config, 4)
        assert (plan.learning_rate, bool(plan.explanation)) == (expected, expected != 1.0)
    assert math.sqrt(4) == learning_rate_scale(TrainConfig(), 4)


@pytest.fixture(scope="module")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of two submodules, the second with a rate of its own; one was interrupted in the middle."""
    place = tmp_path_factory.mktemp("prodigy")
    common = {
        "family": str(ROOT / "tests" / "parts_family.py"), "optimizer": {"name": "prodigy", "d0": 1e-3},
        "learning_rate": 1.0, "max_steps": 6,
    }  # fmt: skip
    found = {}
    for name, rate in (("equal", None), ("lower", 0.1), ("resumed", 0.1)):
        parts = [{"part": "unet"}, {"part": "text_encoder", "learning_rate": rate}]
        settings = {**common, "run_name": name, "parts": parts}
        if name == "resumed":
            train_alone(tiny_config(images, place, **{**settings, "max_steps": 3}))
        code, found[name] = train_alone(tiny_config(images, place, **settings), "latest" if name == "resumed" else None)
        assert code == 0, found[name].failure(0)
    return found


def test_a_part_of_a_run_has_its_own_rate_and_resumes_exactly(runs: dict[str, Run]) -> None:
    assert same_state(runs["lower"].state, runs["resumed"].state)
    assert runs["lower"].losses != runs["equal"].losses
