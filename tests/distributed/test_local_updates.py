"""The arithmetic of outer steps: DiLoCo's Nesterov step, and what is sent of the pseudo-gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from modules.distributed.local_updates import BLOCK, Coding, decode, encode, outer_step, weighted_mean


def reference(
    anchor: NDArray[np.float64], machines: list[list[NDArray[np.float64]]], shares: list[float], rate: float, mu: float
) -> NDArray[np.float64]:
    """Algorithm 1 of arXiv:2311.08105: `machines` are the weights of each machine before each outer step."""
    momentum = np.zeros_like(anchor)
    for after in machines:
        pseudo_gradient = sum(share * (anchor - own) for share, own in zip(shares, after, strict=True))
        momentum = mu * momentum + pseudo_gradient
        anchor = anchor - rate * (pseudo_gradient + mu * momentum)
    return anchor


@pytest.mark.parametrize(("rate", "mu"), [(0.7, 0.9), (1.0, 0.0)])
def test_the_outer_step_is_that_of_the_paper_and_of_torch(rate: float, mu: float) -> None:
    random = np.random.default_rng(0)
    start, shares = random.normal(size=50), [0.75, 0.25]
    rounds = [[random.normal(size=50) for _ in shares] for _ in range(4)]
    expected = reference(start, rounds, shares, rate, mu)

    anchor, momentum = torch.tensor(start), torch.zeros(50, dtype=torch.float64)
    weight = torch.nn.Parameter(torch.tensor(start))
    sgd = torch.optim.SGD([weight], lr=rate, momentum=mu, nesterov=mu > 0)
    for after in rounds:
        for values, step in ((anchor, None), (weight, sgd)):
            mean = sum(share * (values.detach() - torch.tensor(own)) for share, own in zip(shares, after, strict=True))
            assert isinstance(mean, torch.Tensor)
            if step is None:
                outer_step(anchor, momentum, mean, rate, mu)
            else:
                weight.grad = mean
                step.step()
    torch.testing.assert_close(anchor.numpy(), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weight.detach(), anchor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("coding", "error", "sent"), [("none", 0.0, 4.0), ("fp16", 2**-11, 2.016), ("int8", 0.5 / 127, 1.016)]
)
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e30])
def test_each_block_has_its_own_scale(coding: Coding, error: float, sent: float, size: float) -> None:
    values = torch.randn(40 * BLOCK, generator=torch.Generator().manual_seed(0)) * size
    values[: 2 * BLOCK] = 0.0
    values[-BLOCK:] *= 1e-4  # small ones beside large ones
    coded = encode(values, coding)
    assert coded.numel() / values.numel() == pytest.approx(sent, rel=1e-3)
    back = decode(coded, values.numel(), coding, values.dtype)
    largest = values.view(-1, BLOCK).abs().amax(dim=1, keepdim=True)
    assert ((back - values).view(-1, BLOCK).abs() <= 1.01 * error * largest).all()
    assert (back[: 2 * BLOCK] == 0).all()


@pytest.mark.parametrize("coding", ["none", "fp16", "int8"])
def test_the_mean_over_one_machine_is_what_it_sends(coding: Coding) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert group is not None
        values = torch.randn(1000, dtype=torch.float64)
        mean = weighted_mean(values, [1.0], coding, group)
    finally:
        dist.destroy_process_group()
    assert mean.shape == values.shape
    torch.testing.assert_close(mean, values, rtol=0, atol={"none": 0.0, "fp16": 0.01, "int8": 0.1}[coding])
