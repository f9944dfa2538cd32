"""The arithmetic of outer steps: DiLoCo's Nesterov step, and what is sent of the pseudo-gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from modules.distributed.local_updates import (
    BLOCK,
    Coding,
    by_dtype,
    decode,
    encode,
    outer_step,
    pieces,
    weighted_mean,
)
from tests.distributed import local_updates_programs
from tests.distributed.local_updates_programs import ROUNDS, START
from tests.ports import free_port
from tests.runs import in_ranks


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


def test_the_outer_step_rounds_each_operation_so_that_processors_with_and_without_fma_agree() -> None:
    random, rate, mu = np.random.default_rng(0), np.float32(0.7), np.float32(0.9)
    anchor, momentum, mean = (random.normal(size=10_000).astype(np.float32) * size for size in (1.0, 0.01, 0.001))
    momentum_after = momentum * mu + mean
    anchor_after = anchor - (momentum_after * mu + mean) * rate
    outer_step(torch.from_numpy(anchor), torch.from_numpy(momentum), torch.from_numpy(mean), 0.7, 0.9)  # in place
    assert np.array_equal(anchor, anchor_after)
    assert np.array_equal(momentum, momentum_after)


def test_int8_moves_small_values_on_average() -> None:
    values = torch.full((BLOCK,), 0.001)
    values[::16] = 1.0
    generator = torch.Generator().manual_seed(0)
    back = [decode(encode(values, "int8", generator), BLOCK, "int8", values.dtype) for _ in range(400)]
    torch.testing.assert_close(torch.stack(back).mean(0)[values < 1].mean(), torch.tensor(0.001), rtol=0.1, atol=0)
    assert not torch.equal(back[0], back[1])


@pytest.mark.parametrize("order", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_buffers_are_exchanged_in_the_order_of_the_model(order: tuple[torch.dtype, ...]) -> None:
    """And not of a set, which differs between processes."""
    assert tuple(by_dtype(torch.zeros(1, dtype=dtype) for dtype in order)) == order


def test_large_weights_are_exchanged_in_parts() -> None:
    weights = {"a": torch.zeros(3), "b": torch.zeros(5, 4), "c": torch.zeros(()), "d": torch.zeros(2, 30)}
    found = list(pieces(weights, 10))
    sizes = [[weights[name][rows].numel() for name, rows in piece] for piece in found]
    assert sizes == [[3], [8], [8], [4, 1], [30], [30]]
    for piece in found:
        for name, rows in piece:
            weights[name][rows] += 1
    assert all((weight == 1).all() for weight in weights.values())


@pytest.mark.parametrize(
    ("coding", "error", "sent"), [("none", 0.0, 4.0), ("fp16", 2**-11, 2.016), ("int8", 1 / 127, 1.016)]
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


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two machines of a process each found."""
    folder = tmp_path_factory.mktemp("agreements")
    in_ranks(local_updates_programs.agreements, 2, free_port(), (folder,))
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]


def test_frozen_weights_stay_and_lose_their_momentum(found: list[dict[str, Any]]) -> None:
    first, second, *frozen, momentum = found[0]["frozen"]
    assert first > second
    assert frozen == [second] * 3
    assert momentum == 0.0


@pytest.mark.parametrize("poisoned", ["poisoned buffer", "poisoned state"])
def test_a_machine_that_is_not_finite_does_not_count(found: list[dict[str, Any]], poisoned: str) -> None:
    assert [each[poisoned] for each in found] == [((1,), START[0] - 0.25, START[2])] * 2


@pytest.mark.parametrize("name", ["bf16", "bf16 mean"])
def test_what_is_below_a_place_of_bf16_counts(found: list[dict[str, Any]], name: str) -> None:
    assert found[0][name] == pytest.approx(ROUNDS / 3 * 2.0**-7, rel=0.05)


def test_a_mean_without_an_outer_step_is_exact(found: list[dict[str, Any]]) -> None:
    assert found[0]["mean"]
