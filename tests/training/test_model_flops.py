"""FLOPs of a step are torch's own count of the first forward, which does not change what is computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.training.model_flops import ModelFlops, measure_peak
from modules.training.precision import Precision

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
    flops = ModelFlops.of(model, Precision("fp32", CPU), can_count=True)
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        model.zero_grad()
        with flops.counting(len(images)):
            result = model(images)
        result.sum().backward()
        results.append([result, *(each.grad.clone() for each in model.parameters() if each.grad is not None)])
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))
    forward = 2 * 64 * (3 * 9 * 64 + 64 * 64) + 2 * 2 * 64 * 64 * 64
    assert flops.of_step(5) == {"model_flops": pytest.approx(3 * forward * 5), "peak_flops": flops.peak}
    assert flops.peak > 1e8


def test_frozen_weights_take_no_gradients() -> None:
    model = nn.Linear(8, 8, bias=False).requires_grad_(False)
    flops = ModelFlops.of(model, Precision("fp32", CPU), can_count=True)
    with flops.counting(1):
        model(torch.ones(1, 8))
    assert flops.of_step(1)["model_flops"] == 2 * 2 * 64


def test_what_cannot_be_counted_is_left_out() -> None:
    flops = ModelFlops.of(nn.Linear(8, 8), Precision("bf16", CPU), can_count=False)
    with flops.counting(1):
        nn.Linear(8, 8)(torch.ones(1, 8))
    assert flops.of_step(1) == {}
    assert measure_peak(CPU, torch.bfloat16) > 0
