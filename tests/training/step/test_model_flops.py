"""FLOPs of a step are torch's own count of the first forward, which does not change what is computed."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from modules.training.device.precision import Precision
from modules.training.step import model_flops
from modules.training.step.model_flops import ModelFlops, measure_peak

CPU = torch.device("cpu")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states = self.project(images.flatten(2).transpose(1, 2))
        return nn.functional.scaled_dot_product_attention(states, states, states)


def test_only_the_first_forward_is_counted_and_its_result_is_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), Attention(), nn.Dropout(0.5))
    images = torch.randn(2, 3, 8, 8)
    flops = ModelFlops.of(Precision("fp32", CPU), can_count=True)
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        model.zero_grad()
        with flops.counting(len(images)):
            result = model(images)
        result.sum().backward()
        results.append([result, *(each.grad.clone() for each in model.parameters() if each.grad is not None)])
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))
    convolution, others = 2 * 64 * 3 * 9 * 64, 2 * 64 * 64 * 64 + 2 * 2 * 64 * 64 * 64
    expected = (2 * convolution + 3 * others) * 5  # images need no gradient
    assert flops.of_step(5) == {"model_flops": pytest.approx(expected), "peak_flops": flops.peak}
    assert flops.peak > 1e8


class LowRank(nn.Module):
    """A frozen layer with a low-rank change."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) + self.up(self.down(x))
        return out


def model_of(kind: str) -> nn.Module:
    """Convolutions, attention and a layer of which all, some or none are trained."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), Attention(), nn.Linear(64, 64), nn.Linear(64, 8))
    if kind != "full":
        model.requires_grad_(False)
    if kind == "adapter":
        model[1].project = LowRank(nn.Linear(64, 64))
        model[3] = LowRank(nn.Linear(64, 8))
    if kind == "last layer":
        model[3].requires_grad_(True)
    return model


@pytest.mark.parametrize("kind", ["full", "adapter", "last layer", "frozen"])
def test_the_count_is_that_of_torch_for_forward_and_backward(kind: str) -> None:
    model, images = model_of(kind), torch.randn(2, 3, 8, 8)
    flops = ModelFlops.of(Precision("fp32", CPU), can_count=True)
    with sdpa_kernel(SDPBackend.MATH):  # products, of which torch counts the backward on the CPU, too
        with flops.counting(2):
            model(images)
        with FlopCounterMode(display=False) as counter:
            loss = model(images).sum()
            if kind != "frozen":
                loss.backward()
    assert flops.of_step(2)["model_flops"] == counter.get_total_flops()
    fused = ModelFlops.of(Precision("fp32", CPU), can_count=True)
    with fused.counting(2):
        model(images)
    assert fused.of_step(2)["model_flops"] == counter.get_total_flops()


def test_what_cannot_be_counted_is_left_out() -> None:
    flops = ModelFlops.of(Precision("bf16", CPU), can_count=False)
    with flops.counting(1):
        nn.Linear(8, 8)(torch.ones(1, 8))
    assert flops.of_step(1) == {}
    assert measure_peak(CPU, torch.bfloat16) > 0


def test_the_peak_of_many_threads_is_that_of_one_times_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of several waits for the one that is scheduled last."""
    before, many = torch.get_num_threads(), 4 * (os.cpu_count() or 1)
    monkeypatch.setattr(model_flops, "_measure", lambda device, dtype: float(torch.get_num_threads()))
    try:
        torch.set_num_threads(many)
        assert measure_peak(CPU, torch.float32) == many
        assert torch.get_num_threads() == many
    finally:
        torch.set_num_threads(before)
