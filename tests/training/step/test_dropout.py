"""Dropout depends on the sample alone: neither the micro-batch nor the number of ranks changes a mask."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from modules.monitoring.report_protocol import SilentReport
from modules.training.step.dropout import PerSampleDropout, SampleMasks, draw_call_seed, draw_mask
from modules.training.studies.parity import loss_difference, weight_difference
from tests.runs import ROOT, Run, tiny_config, train_alone

CPU = torch.device("cpu")
DROPPED: dict[str, object] = {"precision": "fp64", "max_steps": 12, "family_options": {"dropout": 0.3}}
SEEDS = torch.tensor([3, 1 << 61, 5, 77, 12, 1])


class Warnings(SilentReport):
    """Keeps what it is warned of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warning(self, text: str) -> None:
        self.texts.append(text)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleDict(layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function(x, *self.layers.values())
        return out


def attention(x: Tensor) -> Tensor:
    """x [B, 4, 6, 5] as queries, keys and values of four heads, with a mask for each sample."""
    allowed = (x.mean(dim=(1, 3)) > -5)[:, None, None, :]
    return functional.scaled_dot_product_attention(x, x * 2, x + 1, allowed.expand(-1, 4, 6, 6), dropout_p=0.4)


def attention_by_name(x: Tensor) -> Tensor:
    """As `attention`, with one mask for all samples, and the arguments in another order."""
    allowed = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    return functional.scaled_dot_product_attention(attn_mask=allowed, dropout_p=0.4, key=x * 2, value=x + 1, query=x)


def chunked(x: Tensor, drop: nn.Module) -> Tensor:
    """As text encoders, which get the chunks of a prompt as rows of their own."""
    return drop(x.flatten(0, 1)).unflatten(0, x.shape[:2])


WAYS: dict[str, Calls] = {
    "layer": Calls(lambda x, drop: drop(x), drop=nn.Dropout(0.4)),
    "layer, in place": Calls(lambda x, drop: drop(x * 1), drop=nn.Dropout(0.4, inplace=True)),
    "chunks": Calls(chunked, drop=nn.Dropout(0.4)),
    "one layer twice": Calls(lambda x, drop: drop(drop(x)), drop=nn.Dropout(0.3)),
    "channels": Calls(lambda x, drop: drop(x), drop=nn.Dropout2d(0.4)),
    "alpha": Calls(lambda x, drop: drop(x), drop=nn.AlphaDropout(0.4)),
    "function": Calls(lambda x: functional.dropout(x, 0.4)),
    "function, by name": Calls(lambda x: functional.dropout(input=x, p=0.4, training=True)),
    "channels by function": Calls(lambda x: functional.dropout3d(x[..., None], 0.4)[..., 0]),
    "channels of sequences": Calls(lambda x: functional.dropout1d(x[:, 0], 0.4)),
    "alpha of channels": Calls(lambda x: functional.feature_alpha_dropout(x, 0.4, training=True)),
    "attention": Calls(attention),
    "attention, by name": Calls(attention_by_name),
    "attention layer": Calls(
        lambda x, layer: layer(x[:, 0], x[:, 1], x[:, 2], need_weights=False)[0],
        layer=nn.MultiheadAttention(5, 1, dropout=0.4, batch_first=True).double(),
    ),
    "attention layer with weights": Calls(
        lambda x, layer: layer(x[:, 0], x[:, 1], x[:, 2])[0],
        layer=nn.MultiheadAttention(5, 1, dropout=0.4, batch_first=True).double(),
    ),
    "mixed": Calls(lambda x, drop: attention(drop(x)) + functional.dropout(drop(x), 0.1), drop=nn.Dropout(0.2)),
}


def dropped(model: nn.Module, dropout: PerSampleDropout, x: Tensor, seeds: Tensor, step: int = 7) -> Tensor:
    with dropout.of(seeds, step):
        out: Tensor = model(x)
    return out


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_is_dropped_the_same_in_every_micro_batch(way: str) -> None:
    model, report = WAYS[way], Warnings()
    dropout = PerSampleDropout(model, CPU, report, compiled=False)
    x = torch.randn(6, 4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = dropped(model, dropout, x, SEEDS)
    parts = [dropped(model, dropout, x[part], SEEDS[part]) for part in (slice(0, 1), slice(1, 3), slice(3, 6))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)
    backwards = dropped(model, dropout, x.flip(0), SEEDS.flip(0))
    torch.testing.assert_close(backwards.flip(0), whole, rtol=1e-12, atol=1e-12)
    assert not torch.equal(dropped(model, dropout, x, SEEDS, step=8), whole)
    assert not torch.equal(dropped(model, dropout, x, SEEDS + 1), whole)
    assert report.texts == []


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_masks_have_the_rate_and_are_independent(p: float) -> None:
    n, calls = 20_000, 3
    generator = torch.Generator().manual_seed(0)
    masks = [draw_mask((12, n), CPU, p, SEEDS, draw_call_seed(generator)).double() for _ in range(calls)]
    rows = torch.cat(masks)  # two rows for each of six samples, three calls
    deviation = (p * (1 - p) / n) ** 0.5
    assert rows.mean().item() == pytest.approx(p, abs=5 * deviation / len(rows) ** 0.5)
    assert (rows.mean(dim=1) - p).abs().max() < 5 * deviation
    # the correlation of independent rows has the standard deviation 1 / sqrt(n)
    correlation = torch.corrcoef(rows) - torch.eye(len(rows), dtype=torch.float64)
    assert correlation.abs().max() < 5 / n**0.5
    # neighbours within a row are independent, too
    centred = rows - p
    neighbours = (centred[:, 1:] * centred[:, :-1]).mean(dim=1) / (p * (1 - p))
    assert neighbours.abs().max() < 5 / n**0.5


def test_what_is_kept_is_divided_by_its_probability() -> None:
    masks = SampleMasks()
    masks.start(SEEDS)
    x = torch.randn(6, 1000, requires_grad=True)
    out = masks.dropout(x, 0.25)
    kept = out != 0
    torch.testing.assert_close(out[kept], x[kept] / 0.75)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, kept / 0.75)
    assert torch.equal(masks.dropout(x, 1.0), torch.zeros(6, 1000))
    half = masks.dropout(x.detach().bfloat16(), 0.25)
    assert half.dtype is torch.bfloat16


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_recomputed_is_dropped_again(reentrant: bool) -> None:
    def block(x: Tensor, drop: nn.Module) -> Tensor:
        return torch.tanh(functional.dropout(drop(torch.sin(drop(x))), 0.2))

    gradients = []
    for recomputed in (False, True):
        model, report = Calls(block, drop=nn.Dropout(0.3)), Warnings()
        dropout = PerSampleDropout(model, CPU, report, compiled=False)
        x = torch.linspace(-2, 2, 600).reshape(6, 100).requires_grad_()
        for _ in range(2):
            with dropout.of(SEEDS, 4):
                out = x
                for _ in range(3):
                    out = checkpoint(model, out, use_reentrant=reentrant) if recomputed else model(out)
                out.sum().backward()
        gradients.append(x.grad)
        assert report.texts == []
    torch.testing.assert_close(gradients[0], gradients[1])


def test_torch_is_its_own_again_after_a_micro_batch() -> None:
    own = (functional.dropout, functional.dropout2d, functional.scaled_dot_product_attention)
    model, x = nn.Dropout(0.5), torch.ones(6, 1000)
    dropout = PerSampleDropout(model, CPU, Warnings(), compiled=False)
    with pytest.raises(ValueError, match="inside"), dropout.of(SEEDS, 0):
        raise ValueError("inside")
    assert (functional.dropout, functional.dropout2d, functional.scaled_dot_product_attention) == own
    assert not torch.equal(model(x), model(x))


def test_numpy_and_python_draw_the_same_in_a_micro_batch_that_is_computed_again() -> None:
    dropout = PerSampleDropout(nn.Identity(), CPU, Warnings(), compiled=False)

    def draws(seeds: Tensor, step: int) -> tuple[float, float, float]:
        with dropout.of(seeds, step):
            return float(np.random.beta(0.2, 0.2)), random.random(), float(torch.rand(()))

    assert draws(SEEDS, 3) == draws(SEEDS, 3)
    assert draws(SEEDS, 3)[:2] != draws(SEEDS[1:], 3)[:2] != draws(SEEDS[1:], 4)[:2]


def test_without_dropout_nothing_is_drawn() -> None:
    layer = nn.Dropout(0.5).eval()
    report = Warnings()
    dropout = PerSampleDropout(layer, CPU, report, compiled=False)
    x = torch.ones(6, 4)
    with dropout.of(SEEDS, 3):
        assert layer(x) is x
        assert functional.dropout(x, 0.0) is x
        assert torch.equal(functional.dropout2d(x[..., None, None], 0.5, training=False)[..., 0, 0], x)
        assert torch.equal(
            functional.scaled_dot_product_attention(x, x, x), functional.scaled_dot_product_attention(x, x, x)
        )
        assert torch.equal(torch.default_generator.get_state(), torch.Generator().manual_seed(3).get_state())
    assert report.texts == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns itself while it traces
def test_compiled_layers_drop_the_same_in_every_micro_batch() -> None:
    model = Calls(lambda x, drop: torch.sin(drop(torch.cos(drop(x)))), drop=nn.Dropout(0.4))
    dropout = PerSampleDropout(model, CPU, Warnings(), compiled=True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled: Any = torch.compile(model, backend="aot_eager", dynamic=False, fullgraph=True)
    x = torch.randn(6, 50, requires_grad=True)
    whole = dropped(compiled, dropout, x, SEEDS)
    whole.sum().backward()
    parts = [dropped(compiled, dropout, x[part], SEEDS[part]) for part in (slice(0, 2), slice(2, 4), slice(4, 6))]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(dropped(compiled, dropout, x, SEEDS, step=8), whole)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # of six samples and of two
    torch.testing.assert_close(dropped(model, dropout, x, SEEDS), whole)


NOT_PER_SAMPLE = {
    "noise": lambda x: x + torch.randn_like(x),
    "rows": lambda x: functional.dropout(x.flatten()[:-1]),
    "recurrent": lambda x: nn.LSTM(4, 3, num_layers=2, dropout=0.5)(x)[0],
}


@pytest.mark.parametrize("way", NOT_PER_SAMPLE)
def test_a_model_that_draws_in_another_way_is_warned_of_once(way: str) -> None:
    model, report = Calls(NOT_PER_SAMPLE[way]), Warnings()
    dropout = PerSampleDropout(model, CPU, report, compiled=False)
    for _ in range(3):
        dropped(model, dropout, torch.ones(6, 4), SEEDS)
    assert len(report.texts) == 1
    assert "the result depends on batch_size and on the number of GPUs" in report.texts[0]


def test_one_sequence_still_attends_to_all_of_itself() -> None:
    report = Warnings()
    dropout = PerSampleDropout(nn.Module(), CPU, report, compiled=False)
    x = torch.randn(4, 8)  # [tokens, features], without a batch
    with dropout.of(SEEDS[:2], 7):
        seen = functional.scaled_dot_product_attention(x, x, x, dropout_p=1e-9)
    torch.testing.assert_close(seen, functional.scaled_dot_product_attention(x, x, x))
    assert len(report.texts) == 1


# Whole runs


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dropout")


@pytest.fixture(scope="module")
def one(images: Path, place: Path) -> Run:
    code, run = train_alone(tiny_config(images, place, run_name="one", **DROPPED))
    assert code == 0
    return run


def same(run: Run, expected: Run) -> None:
    assert loss_difference(run.losses, expected.losses) <= 1e-9
    assert weight_difference(run.state, expected.state) <= 1e-9


def test_smaller_micro_batches_train_the_same(images: Path, place: Path, one: Run) -> None:
    settings = {**DROPPED, "batch_size": 1, "gradient_accumulation_steps": 4, "gradient_checkpointing": True}
    _, other = train_alone(tiny_config(images, place, run_name="small", **settings))
    same(other, one)
    assert "random numbers" not in one.warnings + other.warnings


def test_pieces_after_running_out_of_memory_train_the_same(images: Path, place: Path) -> None:
    """Both runs skip their first step; one of them goes on in pieces."""
    runs = []
    for fault in ("nan:0:1", "out_of_memory:0:1"):
        settings = {
            **DROPPED,
            "family_options": {"dropout": 0.3, "faults": [fault]},
            "run_name": fault.partition(":")[0],
        }
        code, run = train_alone(tiny_config(images, place, **settings))
        assert code == 0
        runs.append(run)
    assert "at most 2 samples" in runs[1].warnings
    assert loss_difference(runs[0].losses[1:], runs[1].losses[1:]) <= 1e-9
    assert weight_difference(runs[0].state, runs[1].state) <= 1e-9


def test_dropout_by_function_trains_the_same(images: Path, place: Path) -> None:
    family = {"family": str(ROOT / "tests" / "functional_family.py")}
    runs = []
    for size in (4, 1):
        settings = {**DROPPED, **family, "batch_size": size, "run_name": f"functional-{size}"}
        code, run = train_alone(tiny_config(images, place, **settings))
        assert code == 0
        runs.append(run)
    same(*runs)
