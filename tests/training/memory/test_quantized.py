"""Adapters on a base whose frozen linear layers are kept in 8 or 4 bits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from modules.config import TrainConfig, explain
from modules.diffusion.quantized import QUANTIZED, QuantizedLinear, can_be_quantized, quantize_
from modules.distributed import Weights
from modules.distributed.rank_group import SingleProcess
from modules.training.memory.move_model import quantize_once
from tests.adapted_models import LORA, PARTS, batch_of, ready, train_a_little
from tests.runs import same_state, tiny_config, train_alone

CPU = torch.device("cpu")


def settings_of(kind: str, **more: object) -> dict[str, Any]:
    return {**LORA, "parts": [{"part": "unet", "weights": kind}], "family_options": {"width": 16}, "seed": 9, **more}


@pytest.mark.parametrize(
    ("kind", "error", "size"), [("int8", 0.5 / 127, 1.1), ("fp8", 16 / 448, 1.1), ("nf4", 0.153, 0.6)]
)
def test_a_layer_is_close_to_its_weights_and_small(kind: str, error: float, size: float) -> None:
    """Half the widest gap of levels, relative to the largest weight of a row or of a block."""
    torch.manual_seed(0)
    layer = nn.Linear(70, 33).requires_grad_(False)
    weight = layer.weight.detach().clone()
    quantize_(layer, kind, CPU)
    assert isinstance(layer, QuantizedLinear)
    assert (layer.weight - weight).abs().max() <= error * weight.abs().max()
    assert layer._bits is not None
    assert layer._scales is not None
    assert layer._bits.nbytes + layer._scales.nbytes <= size * weight.numel() + 64 * 4
    assert list(layer.state_dict()) == ["bias"], "no backup holds them"
    x = torch.randn(5, 70, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    out, expected = layer(x), functional.linear(twin, layer.weight, layer.bias)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_layers_that_are_quantised_together_have_the_same_bits() -> None:
    torch.manual_seed(0)
    layers = [(nn.Linear(columns, 33).requires_grad_(False), kind) for kind in QUANTIZED for columns in (70, 64)]
    apart = [copy.deepcopy(layer) for layer, _ in layers]
    quantize_once(layers, SingleProcess([]))
    for (layer, kind), twin in zip(layers, apart, strict=True):
        quantize_(twin, kind, CPU)
        one, other = cast(QuantizedLinear, layer), cast(QuantizedLinear, twin)
        assert torch.equal(one._bits.view(torch.uint8), other._bits.view(torch.uint8)), kind
        assert torch.equal(cast(Tensor, one._scales), cast(Tensor, other._scales)), kind
        assert torch.equal(one.weight, other.weight)
    first, last = (cast(QuantizedLinear, layers[number][0])._bits for number in (0, -1))
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr(), "one piece of memory"


def test_values_of_nf4_that_are_levels_stay_exact() -> None:
    layer = nn.Linear(64, 2, bias=False).requires_grad_(False)
    levels = torch.tensor([-1.0, -0.6961928009986877, 0.0, 0.07958029955625534, 0.7229568362236023, 1.0])
    layer.weight.data = levels[torch.arange(128) % 6].view(2, 64) * torch.tensor([[3.0], [0.5]])
    before = layer.weight.detach().clone()
    quantize_(layer, "nf4", CPU)
    torch.testing.assert_close(layer.weight, before, rtol=1e-6, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["int8", "fp8", "nf4"])
def test_an_adapter_is_trained_on_it(kind: str, precision: str) -> None:
    family, config = ready(**settings_of(kind, precision=precision, lora_algorithm="lokr"))
    body = family.model.get_submodule("unet")
    bits = {name: module for name, module in body.named_modules() if isinstance(module, QuantizedLinear)}
    assert set(bits) == {f"to_{one}.base_layer" for one in "qkv"} | {"ff.base_layer"}
    assert all(".lokr_" in name for name in Weights(family.model).local)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        first = batch_of(3, family)
        assert first.item() == pytest.approx(batch_of(3, ready(**settings_of("run"))[0]).item(), rel=0.05)
        train_a_little(family, config.model_copy(update={"learning_rate": 0.02}), steps=8)
        assert batch_of(3, family) < first


def test_embedders_norms_and_the_models_own_list_stay() -> None:
    part = nn.Module()
    part._skip_layerwise_casting_patterns = ["modulation"]  # type: ignore[assignment]
    layer = nn.Linear(4, 4).requires_grad_(False)
    assert can_be_quantized("blocks.0.attn.to_q.base_layer", layer, part)
    for name in ("time_embedding.linear_1", "x_embedder", "norm_out.linear", "proj_out", "blocks.0.modulation.lin"):
        assert not can_be_quantized(name, layer, part), name
    assert not can_be_quantized("blocks.0.ff", nn.Linear(4, 4), part), "trained"


def test_a_resumed_run_ends_in_the_same_bits(images: Path, tmp_path: Path) -> None:
    settings = {**settings_of("int8"), "max_steps": 4, "batch_size": 8, "backup_every": "2 steps", "backups_kept": 9}
    code, whole = train_alone(tiny_config(images, tmp_path / "whole", **settings))
    assert code == 0, whole.failure(0)
    backup = str(whole.folder.backup_dir / "step-000002")
    code, again = train_alone(tiny_config(images, tmp_path / "again", **settings), backup)
    assert code == 0, again.failure(0)
    assert same_state(again.state, whole.state)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"method": "fine_tune"},
            "parts.0.weights is int8, but fine_tune trains and saves the model itself; set",
        ),
        ({"training_mode": "fully_sharded"}, "parts.0.weights is int8, but training_mode fully_sharded divides"),
    ],
)
def test_what_cannot_be_quantized_is_refused_by_name(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({"family": PARTS, **settings_of("int8"), **settings})
    assert said in explain(caught.value)[0]
