"""The guarded step, the average of the weights, the precision and the step metrics."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modules.config import TrainConfig, TrainingError
from modules.data.loading.progress import Progress
from modules.distributed import Weights
from modules.monitoring import StepRecord
from modules.training.device.precision import Name, Precision
from modules.training.optim.ema import Ema
from modules.training.optim.optimizers import GuardedStep, build_optimizer, loss_factor, set_learning_rate
from modules.training.step import phases
from modules.training.step.metrics import StepMetrics
from modules.training.step.safeguards import check_per_sample

CPU = torch.device("cpu")


def guarded(
    model: nn.Module, max_norm: float | None = 1.0, precision: Name = "fp32", **optimizer: object
) -> GuardedStep:
    config = TrainConfig.model_validate({"optimizer": {"name": "adamw", **optimizer}, "learning_rate": 0.1})
    return GuardedStep(
        build_optimizer(model.parameters(), config), Weights(model), Precision(precision, CPU).scaler, max_norm
    )


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "AdamW", "RMSprop"])
def test_torchs_own_optimizers_keep_nothing_outside_of_backups(name: str) -> None:
    model = nn.Linear(3, 2)
    arguments = "" if name == "RMSprop" else "fused = true"
    step = guarded(model, name="custom", target=f"torch.optim.{name}", arguments=arguments)
    model(torch.ones(1, 3)).sum().backward()
    step.apply()
    assert step.not_in_backups() == []


@pytest.mark.parametrize("target", ["AdamW", "SGD", "Adagrad"])
def test_a_cleared_optimizer_goes_on_as_a_new_one(target: str) -> None:
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    arguments = "momentum = 0.9" if target == "SGD" else ""
    spoilt, new = (guarded(m, name="custom", target=f"torch.optim.{target}", arguments=arguments) for m in models)
    models[0](torch.ones(1, 3)).sum().backward()
    spoilt.apply()
    for tensor in spoilt.state_tensors():
        tensor.fill_(math.nan)
    spoilt.clear_state()
    models[0].load_state_dict(models[1].state_dict())
    for _ in range(2):
        for model, step in zip(models, (spoilt, new), strict=True):
            model(torch.ones(1, 3)).square().sum().backward()
            step.apply()
    assert torch.equal(models[0].weight, models[1].weight)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [{"fused": True}, {}, {"name": "sgd", "fused": True}, {"name": "lion"}], ids=str)
def test_a_gradient_that_is_not_finite_changes_nothing(settings: dict[str, Any], bad: float, first: bool) -> None:
    model = nn.Linear(3, 2)
    step = guarded(model, **settings)
    twin = nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    undisturbed = guarded(twin, **settings)
    for number in range(4):
        if number == (0 if first else 2):
            model(torch.full((1, 3), bad)).sum().backward()
            before = [weight.detach().clone() for weight in model.parameters()]
            assert not math.isfinite(step.apply())
            assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        for each, apply in ((model, step), (twin, undisturbed)):
            each(torch.full((1, 3), number + 1.0)).square().sum().backward()
            apply.apply()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_clipping_limits_the_step_and_the_norm_is_before_it() -> None:
    model = nn.Linear(1, 1, bias=False)
    step = guarded(model, max_norm=0.5, name="sgd", momentum=0.0)
    before = model.weight.item()
    (model.weight * 8).sum().backward()
    assert step.apply().item() == pytest.approx(8)
    assert before - model.weight.item() == pytest.approx(0.1 * 0.5, rel=1e-3)
    assert model.weight.grad is None


def test_without_a_limit_nothing_is_clipped() -> None:
    model = nn.Linear(1, 1, bias=False)
    step = guarded(model, max_norm=None, name="sgd", momentum=0.0)
    before = model.weight.item()
    (model.weight * 8).sum().backward()
    step.apply()
    assert before - model.weight.item() == pytest.approx(0.8)


@pytest.mark.parametrize("ranks", [2, 3, 6, 7])
def test_ranks_round_as_one_does_where_a_model_computes_in_fp32(ranks: int) -> None:
    alone, one_of_many = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    one_of_many.load_state_dict(alone.state_dict())
    samples = torch.rand(2 * ranks, 4, dtype=torch.float64)
    for model, world_size in ((alone, 1), (one_of_many, ranks)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = Precision("fp64", CPU).scaler
        step = GuardedStep(optimizer, Weights(model), scaler, None, world_size=world_size)
        for own in samples.chunk(world_size):  # added up, as the reduction does
            loss = model(own).float().exp().double().sum() / len(samples)
            (loss * loss_factor(world_size)).backward()
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad /= world_size  # the reduction averages
        step.apply()
    for one, many in zip(alone.parameters(), one_of_many.parameters(), strict=True):
        assert torch.allclose(one, many, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("fused", [True, False])
def test_fp16_overflow_lowers_the_scale_and_skips_the_step(fused: bool) -> None:
    model = nn.Linear(3, 2)
    step = guarded(model, precision="fp16", name="sgd", fused=fused)
    scaler = step._scaler
    scale = scaler.get_scale()
    before = model.weight.detach().clone()
    scaler.scale(model(torch.full((1, 3), math.inf)).sum()).backward()
    step.apply()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() < scale
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    step.apply()
    assert bool(model.weight.isfinite().all())
    assert not torch.equal(model.weight, before)


def test_the_learning_rate_is_set_for_every_group() -> None:
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]}, {"params": [nn.Parameter(torch.ones(1))]}])
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def test_the_average_follows_with_a_decay_that_ramps_up() -> None:
    weight = nn.Parameter(torch.zeros(2))
    ema = Ema({"w": weight}, 0.5)
    weight.data.fill_(1.0)
    expected = 0.0
    for step in range(1, 30):
        ema.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay)
        assert ema.average["w"][0].item() == pytest.approx(expected)


def test_ema_weights_are_swapped_in_and_out_even_after_an_error() -> None:
    weight = nn.Parameter(torch.ones(2))
    ema = Ema({"w": weight}, 0.9)
    weight.data.fill_(5.0)
    inside = []

    def fail() -> None:
        with ema.in_place():
            inside.append(weight[0].item())
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert inside == [1.0]
    assert weight[0].item() == 5.0


def test_ema_weights_are_exchanged_without_a_copy() -> None:
    weight = nn.Parameter(torch.ones(2))
    ema = Ema({"w": weight}, 0.9)
    own, average = weight.data_ptr(), ema.average["w"].data_ptr()
    with ema.in_place():
        assert (weight.data_ptr(), ema.average["w"].data_ptr()) == (average, own)
    assert (weight.data_ptr(), ema.average["w"].data_ptr()) == (own, average)


def test_a_saved_average_that_lacks_a_weight_is_refused() -> None:
    with pytest.raises(KeyError):
        Ema({"w": torch.ones(1)}, 0.9).load({})


@pytest.mark.parametrize(
    ("name", "weights", "inside"),
    [
        ("fp32", torch.float32, torch.float32),
        ("tf32", torch.float32, torch.float32),
        ("bf16", torch.float32, torch.bfloat16),
        ("fp16", torch.float32, torch.float16),
        ("fp64", torch.float64, torch.float64),
    ],
)
def test_precision_of_weights_and_of_the_forward(name: Name, weights: torch.dtype, inside: torch.dtype) -> None:
    precision = Precision(name, CPU)
    layer = nn.Linear(2, 2).to(precision.weights)
    with precision.autocast():
        assert layer(torch.ones(1, 2, dtype=weights)).dtype is inside
    assert precision.weights is weights
    assert precision.scaler.is_enabled() == (name == "fp16")


class DelayedSums:
    """The asynchronous sums of two ranks, of which the other needs `seconds` for a step."""

    def __init__(self, seconds: float) -> None:
        self.sent: list[Mapping[str, float]] = []
        self.seconds = seconds

    def __call__(self, values: Mapping[str, float]) -> Mapping[str, float]:
        self.sent.append(values)
        previous = self.sent[-2] if len(self.sent) > 1 else {}
        return defaultdict(float, {**previous, "step_s/1": self.seconds})


def syncs(metrics: StepMetrics, reduce: DelayedSums, steps: int) -> tuple[list[int], list[StepRecord]]:
    """The steps after which the ranks synced, and all records."""
    synced, records, progress = [], [], Progress(0, 40, 8)

    def sync(requests: Mapping[str, float], *, flush: bool = False) -> None:
        records.extend(metrics.finish_group(reduce({**requests, **metrics.take_group(flush=flush)})))

    for number in range(1, steps + 1):
        metrics.add_loss(torch.tensor(number / 2, dtype=torch.float64), 1)
        metrics.add_loss(torch.tensor(number / 2, dtype=torch.float64), 1)
        progress = progress.after(8)
        metrics.end_step(progress, 0.1 * number, torch.tensor(10.0 * number))
        if metrics.sync_is_due:
            synced.append(number)
            sync({"stop": float(number == 2)})
    while metrics.pending:
        sync({}, flush=True)
    return synced, records


@pytest.mark.parametrize(
    ("seconds", "synced"),
    [
        (0.3, list(range(2, 33))),
        (0.2, list(range(2, 33))),
        (0.05, [2, 3, 7, 11, 15, 19, 23, 27, 31]),
        (0.001, [2, 3, 11, 19, 27]),
    ],
)
def test_each_step_is_reported_once_in_order_and_late(
    seconds: float, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks, this one needs no time."""
    monkeypatch.setattr(phases, "time", SimpleNamespace(perf_counter=itertools.count(0.0, 1e-9).__next__))
    reduce = DelayedSums(seconds)
    found, records = syncs(StepMetrics(CPU, rank=0, world_size=2), reduce, steps=32)
    assert found == synced
    assert [(each.step, each.loss, each.grad_norm) for each in records] == [(n, n, 10.0 * n) for n in range(1, 33)]
    assert [round(each.learning_rate, 6) for each in records[:4]] == [0.1, 0.2, 0.3, 0.4]
    assert reduce.sent[0]["stop"] == 1.0
    assert all(sent["samples/0"] == 2 for sent in reduce.sent[:-1])


@pytest.mark.parametrize(("norm", "skipped"), [(math.nan, 1), (2.0, 0)])
def test_only_ranks_that_skipped_a_step_for_memory_undo_its_backoff(norm: float, skipped: int) -> None:
    """With local updates, other machines have applied the step."""
    metrics = StepMetrics(CPU, rank=0, world_size=2, norms_differ=True)
    metrics.add_loss(torch.ones(()), 1)
    metrics.end_step(Progress(8, 40, 8), 0.1, torch.tensor(norm))
    metrics.take_group(flush=True)
    metrics.take_group(flush=True)
    assert metrics.skipped_for_memory(defaultdict(float, {"out_of_memory/0": 1.0})) == skipped
    assert metrics.skipped_for_memory(defaultdict(float)) == 0


def test_a_loss_that_is_no_value_per_sample_is_refused() -> None:
    losses = torch.ones(3)
    assert check_per_sample(losses, 3) is losses
    for wrong, shape in ((losses.mean(), "[]"), (losses[:1], "[1]"), (losses.expand(2, 3), "[2, 3]")):
        with pytest.raises(TrainingError, match=re.escape(shape)):
            check_per_sample(wrong, 3)
    with pytest.raises(TrainingError, match="float for 3 samples"):
        check_per_sample(1.0, 3)  # type: ignore[arg-type]


class Operators(TorchDispatchMode):
    """The names of what is called inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_asynchronous = (kwargs or {}).get("non_blocking") or args[2:] == (True,)
        self.names.append(func._schema.name.removeprefix("aten::") + is_asynchronous * ", non_blocking")
        return func(*args, **(kwargs or {}))


def test_an_average_in_host_memory_keeps_no_step_waiting() -> None:
    """The weights are sent all at once, and averaged a step later, as they were then."""
    weights = {"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.ones(2, dtype=torch.bfloat16))}
    here, there = Ema(weights, 0.9), Ema(weights, 0.9, on_cpu=True)
    for step in (1, 2, 3):
        with torch.no_grad():
            for weight in weights.values():
                weight.mul_(1.5)
        here.update(step)
        with Operators() as operators:
            there.update(step)
        called = [name for name in operators.names if name in ("lerp_", "copy_") or "foreach" in name]
        assert called == ["lerp_"] * (2 if step > 1 else 0) + ["_foreach_copy_, non_blocking"]
    with torch.no_grad():
        weights["a"].add_(1)
    assert all(torch.equal(there.average[name], here.average[name]) for name in weights)


def test_an_average_in_host_memory_at_an_interval_is_as_strong() -> None:
    """With constant weights in between, k updates by d are one by d^k; the weights come back to the bit."""
    weight = nn.Parameter(torch.tensor([1.0, 5.0]))
    each, seldom = Ema({"w": weight}, 0.9), Ema({"w": weight}, 0.9, every=5, on_cpu=True)
    with torch.no_grad():
        weight.copy_(torch.tensor([3.0, -2.0]))
    for step in range(101, 111):
        each.update(step)
        seldom.update(step)
        assert torch.equal(seldom.average["w"], torch.tensor([1.0, 5.0])) is (step < 105)
    torch.testing.assert_close(seldom.average["w"], each.average["w"])
    average = seldom.average["w"].clone()
    with seldom.in_place():
        assert torch.equal(weight, average)
    assert torch.equal(weight, torch.tensor([3.0, -2.0]))
    assert torch.equal(seldom.average["w"], average)
