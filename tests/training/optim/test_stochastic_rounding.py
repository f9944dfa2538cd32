"""bf16 weights: rounding that is unbiased, the same everywhere, and learns where the nearest value stalls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from modules.config import TrainConfig, explain
from modules.config.sections.optimizers import OPTIMIZERS
from modules.distributed import Weights
from modules.training.device.precision import Precision
from modules.training.optim.ema import Ema
from modules.training.optim.optimizers import GuardedStep, build_optimizer
from modules.training.optim.per_parameter_step import (
    PerParameterStep,
    optimizer_weights,
    random_bits,
    round_stochastically_,
    seed_of,
)
from tests.runs import Run, recorded, same_state, same_tensors, tiny_config, train_alone

CPU = torch.device("cpu")
SETTINGS: dict[str, object] = {"precision": "bf16", "stochastic_rounding": True, "max_steps": 4, "batch_size": 8}
PLAIN: dict[str, object] = {
    **SETTINGS,
    "batch_size": 4,
    "optimizer": {"name": "sgd", "momentum": 0.0},
    "learning_rate": 0.05,
}
PAIR_JOBS: dict[str, dict[str, object]] = {
    "rounded": {**PLAIN, "family_options": {"record": "rounded"}},
    "rounded and sharded": {**PLAIN, "training_mode": "fully_sharded"},
}
ALONE = [name for name, kind in OPTIMIZERS.items() if kind.per_parameter_step and name != "schedule_free_adamw"]


def guarded(model: nn.Module, seed: int = 0, **settings: object) -> GuardedStep:
    config = TrainConfig.model_validate({"learning_rate": 0.1, **settings})
    weights = Weights(model)
    held = optimizer_weights(weights.local)
    optimizer = build_optimizer([{"params": list(held.values())}], config)
    single = PerParameterStep(optimizer, weights.local, held, seed)
    return GuardedStep(optimizer, weights, Precision("bf16", CPU).scaler, None, single)


def test_values_are_rounded_up_as_often_as_they_are_close_to_it() -> None:
    low, high = 1.0, 1.0 + 2**-7  # neighbours in bf16
    for share in (0.0, 0.1, 0.5, 0.9):
        values = torch.full((100, 400), low + share * (high - low))
        weight = torch.empty(100, 400, dtype=torch.bfloat16)
        round_stochastically_(weight, values, seed=7)
        assert set(weight.float().unique().tolist()) <= {low, high}
        assert (weight == high).float().mean().item() == pytest.approx(share, abs=0.01)
    odd = torch.tensor([-1.0, 0.0, -0.0, 3e38, 1e-40, -float("inf"), 2.5])
    weight = torch.empty(7, dtype=torch.bfloat16)
    round_stochastically_(weight, odd.bfloat16().float(), seed=7)
    assert torch.equal(weight, odd.bfloat16())


def test_bits_depend_on_seed_step_and_name_and_not_on_pieces() -> None:
    whole = random_bits(0, 101, 5, CPU)
    assert torch.equal(whole[40:90], random_bits(40, 50, 5, CPU))
    assert torch.equal(whole[41:90], random_bits(41, 49, 5, CPU)), "a shard may begin anywhere"
    assert int(whole.min()) >= 0
    assert int(whole.max()) < 65536
    many = random_bits(0, 1 << 20, 5, CPU)
    assert many.float().mean().item() == pytest.approx(32767.5, abs=100)
    for bit in range(16):
        assert (many >> bit & 1).float().mean().item() == pytest.approx(0.5, abs=0.003)
    pairs = torch.corrcoef(torch.stack((many[:-1].float(), many[1:].float())))
    assert abs(pairs[0, 1].item()) < 0.005
    seeds = {seed_of(seed, step, name) for seed in (1, 2) for step in (0, 1) for name in ("a", "b")}
    assert len(seeds) == 8
    other = random_bits(0, 1 << 20, seed_of(1, 1, "a"), CPU)
    assert abs(torch.corrcoef(torch.stack((many.float(), other.float())))[0, 1].item()) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [True, False])
def test_tiny_updates_are_learned_where_the_nearest_value_stalls(rounded: bool) -> None:
    """1,000 steps of 1e-4 on weights of 1, whose neighbours in bf16 are 0.004 and 0.008 away."""
    model = nn.Linear(32, 32, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    plain = torch.optim.SGD(model.parameters(), lr=1e-4)
    step = guarded(model, optimizer={"name": "sgd", "momentum": 0.0}, learning_rate=1e-4)
    for number in range(1000):
        model.weight.grad = torch.ones_like(model.weight)
        if rounded:
            step.apply(number=number)
        else:
            plain.step()
    expected = 0.9 if rounded else 1.0
    assert model.weight.float().mean().item() == pytest.approx(expected, abs=0.002)
    assert rounded or bool((model.weight == 1).all())


@pytest.mark.parametrize("name", ALONE)
def test_every_optimizer_that_is_allowed_learns_with_its_state_in_fp32(name: str) -> None:
    if name.endswith("_8bit"):
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is optional and not installed")
    torch.manual_seed(0)
    rate = {"sgd": 0.05, "lion": 0.01}.get(name, 0.05)
    model, x = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).bfloat16(), torch.randn(64, 6)
    step = guarded(model, optimizer=name, learning_rate=rate)
    wanted = torch.stack([x[:, 0] - x[:, 1], x[:, 2] * 0.5], 1)
    losses = []
    for number in range(60):
        loss = (model(x.bfloat16()).float() - wanted).square().mean()
        loss.backward()
        step.apply(number=number)
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2, losses[::10]
    held = {
        value.dtype for state in step.optimizer.state.values() for value in state.values() if hasattr(value, "dtype")
    }
    assert torch.bfloat16 not in held, "bf16 would lose the squares of gradients"
    assert held <= {torch.float32} or name == "flash_adamw"
    assert all(own.untyped_storage().nbytes() == 4 for own in step.optimizer.param_groups[0]["params"])


def test_a_step_that_is_not_finite_changes_no_bit() -> None:
    for optimizer in ({"name": "adamw", "fused": True}, {"name": "adamw", "fused": False}):
        model = nn.Linear(5, 3).bfloat16()
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        step = guarded(model, optimizer=optimizer)
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, float("nan"))
        assert torch.isnan(step.apply(number=1))
        assert same_tensors(before, dict(model.named_parameters()))


def test_the_average_is_kept_in_fp32_and_changes_places_without_a_lost_bit() -> None:
    weight = torch.full((4,), 1.0, dtype=torch.bfloat16)
    for on_cpu in (False, True):
        ema = Ema({"w": weight}, 0.999, on_cpu=on_cpu)
        weight.fill_(1.0078125)
        for step in range(10_000, 10_100):
            ema.update(step)
        inside = 1 + 0.0078125 * (1 - 0.999**100)
        assert ema.average["w"].dtype == torch.float32
        torch.testing.assert_close(ema.average["w"], torch.full((4,), inside), rtol=1e-6, atol=0)
        kept = ema.average["w"].clone()
        with ema.in_place():
            assert torch.equal(weight, kept.bfloat16())
        assert torch.equal(weight, torch.full_like(weight, 1.0078125))
        assert torch.equal(ema.average["w"], kept)
        weight.fill_(1.0)


def test_a_resumed_run_ends_in_the_same_bits(images: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "ema": True, "backup_every": "2 steps", "backups_kept": 9, "channels_last": True}
    code, whole = train_alone(tiny_config(images, tmp_path / "whole", **settings))
    assert code == 0, whole.failure(0)
    backup = str(whole.folder.backup_dir / "step-000002")
    code, again = train_alone(tiny_config(images, tmp_path / "again", **settings), backup)
    assert code == 0, again.failure(0)
    assert same_state(again.state, whole.state)
    kinds = {tensor.dtype for name, tensor in whole.state.weights.items()}
    assert kinds == {torch.bfloat16}
    code, other = train_alone(tiny_config(images, tmp_path / "other", **{**settings, "seed": 1}))
    assert not same_tensors(other.state.weights, whole.state.weights)


@pytest.mark.slow
@pytest.mark.xdist_group("pair")
def test_two_ranks_round_alike_and_train_as_one_does(
    images: Path, tmp_path: Path, pair: dict[str, Run], pair_place: Path
) -> None:
    """Up to bf16's rounding of their gradients' sum: 2^-8 of a step, or a weight rounded the other way."""
    code, one = train_alone(tiny_config(images, tmp_path, **PLAIN))
    assert code == 0, one.failure(0)
    whole, sharded = pair["rounded"], pair["rounded and sharded"]
    assert whole.exit_code == 0, whole.failure(0)
    assert sharded.exit_code == 0, sharded.failure(0)
    sums = [recorded(pair_place / "rounded", rank, skip_first_call=True).weights for rank in range(2)]
    assert len(sums[0]) == 4
    assert sums[0] == sums[1], "the sum of each rank's weights before every step"
    for run in (whole, sharded):
        same = []
        for name, weight in one.state.weights.items():
            other = run.state.weights[name]
            assert weight.dtype == other.dtype == torch.bfloat16
            torch.testing.assert_close(weight, other, rtol=2**-7, atol=1e-3)
            same.append((weight == other).flatten())
        assert torch.cat(same).float().mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"precision": "fp32"}, "stochastic_rounding is true, but precision is fp32; set precision to bf16"),
        ({"method": "lora"}, "stochastic_rounding is true, but method lora trains few weights, which stay in fp32"),
        ({"optimizer": "prodigy"}, "but the optimizer prodigy needs the step of all weights at once; use one of adamw"),
        ({"optimizer": "schedule_free_adamw"}, "schedule_free_adamw keeps its average in the weights"),
    ],
)
def test_what_it_does_not_go_with_is_said(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({**SETTINGS, **settings})
    assert any(said in sentence for sentence in explain(caught.value)), explain(caught.value)
