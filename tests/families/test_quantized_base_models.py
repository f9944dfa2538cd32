"""Base models that bitsandbytes has quantised: its bits, what is trained on them, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from modules.checkpoint.formats import LoraWeights
from modules.config import ConfigError, TrainConfig
from modules.diffusion.bitsandbytes_layout import stored_layers
from modules.diffusion.quantized import QuantizedLinear, replace_weight_
from modules.families._by_name import family_class
from modules.training.device.precision import Precision
from modules.training.memory.model_setup import prepare_model
from modules.training.memory.table import memory_table
from modules.training.methods.lora import merge_lora
from tests.families.bitsandbytes_folders import dequantized_folder, quantized_folder
from tests.families.flow_checks import batch, load
from tests.families.tiny_flow_pipelines import TINY

# layers.safetensors are the state_dicts of a Linear4bit (24 x 64, nf4, double quantisation), another (5 x 26, nf4,
# without) and a Linear8bitLt (6 x 10, int8) of bitsandbytes 0.50.2, made on a CPU from 0.1 * torch.randn after
# torch.manual_seed(0), expected.safetensors what its dequantize_4bit and int8_vectorwise_dequant make of them in fp32;
# of 5 x 26 in Python (backends/default/ops.py), since its CPU kernel wants rows that are multiples of 64.
REAL = Path(__file__).resolve().parents[1] / "fixtures" / "bitsandbytes"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("quantized")
    plain = TINY["flux2"](place / "plain")
    return {
        "plain": plain,
        **{kind: quantized_folder(plain, place / kind, kind) for kind in ("nf4", "int8")},
        **{f"as {kind}": dequantized_folder(plain, place / f"as-{kind}", kind) for kind in ("nf4", "int8")},
    }


def config_of(base: Path, **settings: object) -> TrainConfig:
    given = {"family": "flux2", "base_model": str(base), "method": "lora", "resolution": 64, **settings}
    return TrainConfig.model_validate(given)


def real_layers(place: Path, change: Callable[[dict[str, Tensor]], object] = lambda tensors: None) -> Path:
    """A component `part` in the folder `place`, with the layers of the library."""
    part = place / "part"
    part.mkdir()
    tensors = load_file(REAL / "layers.safetensors")
    change(tensors)
    save_file(tensors, part / "model.safetensors")
    (part / "config.json").write_text("{}")
    return part / "model.safetensors"


def test_layers_of_the_library_are_read_to_the_bit(tmp_path: Path) -> None:
    file = real_layers(tmp_path)
    expected = load_file(REAL / "expected.safetensors")
    layers = stored_layers(tmp_path, "part", [file])
    assert {name: layer.kind for name, layer in layers.items()} == {"double": "nf4", "plain": "nf4", "int8": "int8"}
    for name, stored in layers.items():
        bits, scales = stored.read()
        assert stored.bytes == bits.nbytes + scales.nbytes
        assert [(each.shape, each.dtype) for each in stored.empty()] == [(t.shape, t.dtype) for t in (bits, scales)]
        layer = nn.Linear(stored.shape[1], stored.shape[0], bias=False, device="meta")
        replace_weight_(layer, bits, scales)
        assert isinstance(layer, QuantizedLinear)
        # the library multiplies twice in int8: by SCB, and by 1 / 127
        torch.testing.assert_close(layer.weight, expected[name], rtol=2e-7 if name == "int8" else 0, atol=0)
        assert torch.equal(layer.dequantized(torch.bfloat16), expected[name].bfloat16())


def test_a_layer_may_lie_in_two_shards(tmp_path: Path) -> None:
    """The libraries begin a new file where the next tensor would make one too large, also within a layer."""
    whole = real_layers(tmp_path)
    expected = {name: layer.read() for name, layer in stored_layers(tmp_path, "part", [whole]).items()}
    tensors = list(load_file(whole).items())
    shards = [whole.with_name(f"model-{number}.safetensors") for number in range(2)]
    for number, shard in enumerate(shards):
        save_file(dict(tensors[number::2]), shard)
    for files in (shards, shards[::-1]):
        layers = stored_layers(tmp_path, "part", files)
        assert layers.keys() == expected.keys()
        for name, layer in layers.items():
            assert all(map(torch.equal, layer.read(), expected[name]))


def said(name: str, **changes: object) -> Callable[[dict[str, Tensor]], None]:
    """Change the JSON of a layer; with `text` it is that."""

    def change(tensors: dict[str, Tensor]) -> None:
        key = f"{name}.weight.quant_state.bitsandbytes__nf4"
        state = {**json.loads(bytes(tensors[key].tolist())), **changes}
        text = str(changes["text"]) if "text" in changes else json.dumps(state)
        tensors[key] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    return change


def put(name: str, tensor: Tensor | None) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name) if tensor is None else tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (said("double", blocksize=128), "is in nf4 with blocks of 128 weights; .* Tandem reads nf4"),
        (said("double", quant_type="fp4"), "is in fp4 with blocks"),
        (said("plain", text="{"), "is not JSON"),
        (said("plain", text="[" * 99), "nested too deeply|is not JSON"),
        (said("plain", text=" " * 5000), "has 5000 bytes; at most 4096 are read"),
        (said("plain", shape=[5, 1 << 40]), "is wrong in 'shape.1'"),
        (said("plain", shape=[5, 2600]), "has 65 bytes, while|instead of"),
        (said("double", nested_offset="x"), "is wrong in 'nested_offset'"),
        (put("double.weight.nested_absmax", None), "lacks 'double.weight.nested_absmax'"),
        (put("plain.weight.quant_map", torch.zeros(16)), "has other levels than those of NormalFloat"),
        (put("plain.weight.absmax", torch.zeros(3, dtype=torch.uint8)), r"\[3\] in uint8 instead of \[3\] in float32"),
        (put("int8.SCB", torch.zeros(7)), r"\[7\] in float32 instead of \[6\]"),
        (put("int8.SCB", torch.full((6,), torch.nan)), "'int8' has scales that are not finite"),
        (put("double.weight.nested_absmax", torch.tensor([torch.inf])), "'double' has scales that are not finite"),
        (put("int8.weight", None), "has 'int8.SCB', but lacks 'int8.weight'"),
        (put("int8.weight_format", torch.tensor(1, dtype=torch.uint8)), "in another order than row by row"),
        (put("x.weight.quant_state.bitsandbytes__fp4", torch.zeros(1)), "'x.weight' is in fp4 of bitsandbytes"),
    ],
)
def test_files_that_are_not_read_are_named(change: Callable[[Any], object], sentence: str, tmp_path: Path) -> None:
    file = real_layers(tmp_path, change)
    with pytest.raises(ConfigError, match=sentence) as caught:
        _ = [layer.read() for layer in stored_layers(tmp_path, "part", [file]).values()]
    assert str(file) in caught.value.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "sentence"),
    [
        ({"quant_method": "torchao", "quant_type": {}}, "quantised by torchao; .* Tandem reads nf4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantised by bitsandbytes fp4"),
        ({}, "quantised by a method without a name"),
        ({"quant_method": ["x"]}, "is wrong in 'quant_method'"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "no file beside it has its tensors"),
    ],
)
def test_other_methods_are_refused_by_name(
    quantization: object, sentence: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    base = tmp_path / "model"
    shutil.copytree(folders["plain"], base)
    config = json.loads((base / "text_encoder" / "config.json").read_text())
    (base / "text_encoder" / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    with pytest.raises(ConfigError, match=sentence):
        family_class("flux2").base_model_notes(config_of(base))


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_model_is_what_its_bits_stand_for(kind: str, folders: dict[str, Path]) -> None:
    """Transformer and text encoder; it is trained, and weighed as it is kept."""
    family, plain = load("flux2", folders[kind]), load("flux2", folders[f"as {kind}"])
    given, expected = batch(family, "flux2"), batch(plain, "flux2")
    (states,) = family.text_names
    torch.testing.assert_close(given.tensors[states], expected.tensors[states], rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(family.loss(given), plain.loss(expected), rtol=1e-6, atol=1e-6)
    config = config_of(folders[kind], lora_targets="all_linear")
    notes = family_class("flux2").base_model_notes(config)
    assert [note.partition(" of ")[0] for note in notes] == ["The transformer", "The text_encoder"]
    prepare_model(family, config, Precision("fp32", torch.device("cpu")))
    family.loss(given).sum().backward()
    layers = [layer for layer in family.model.modules() if isinstance(layer, QuantizedLinear)]
    assert len(layers) == sum(".lora_A." in name for name, _ in family.model.named_parameters()) > 20
    table = memory_table(family_class("flux2"), config, activations=False)
    assert table is not None
    sizes = {row.what: row.bytes for row in table.rows}
    kept = sum(layer._bits.nbytes + layer._scales.nbytes for layer in layers if layer._scales is not None)
    assert sizes[f"frozen weights of transformer, {kind} with scales"] == kept
    encoder: Any = next(iter(family.components.load_encoders(torch.float32, torch.device("cpu")).values()))
    bits = [layer for layer in encoder.modules() if isinstance(layer, QuantizedLinear)]
    held = sum(t.nbytes for layer in bits for t in (layer._bits, layer._scales) if t is not None)
    assert sizes[f"text_encoder, {kind}"] == held + sum(weight.nbytes for weight in encoder.parameters())


def test_a_lora_is_merged_into_what_the_bits_stand_for(folders: dict[str, Path]) -> None:
    family = load("flux2", folders["nf4"])
    name = "single_transformer_blocks.0.attn.to_out"
    layer = family.model.get_submodule(f"transformer.{name}")
    assert isinstance(layer, QuantizedLinear)
    before, rows = layer.weight, layer.out_features
    down, up = torch.randn(2, layer.in_features), torch.randn(rows, 2)
    one = LoraWeights(submodule="transformer", module=name, down=down, up=up, alpha=2.0, magnitude=None)
    merge_lora(family, [one])
    assert type(layer) is nn.Linear
    torch.testing.assert_close(layer.weight.detach(), before + up @ down)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"method": "fine_tune"},
            r"method is fine_tune, but transformer of .* \(bitsandbytes nf4\).*\s*Set method to lora",
        ),
        (
            {"parts": [{"part": "transformer", "weights": "int8"}]},
            r"parts.0.weights is int8, but.*\s*Set it to run or nf4",
        ),
        ({"family_options": {"text_encoder_weights": "fp8"}}, r"text_encoder_weights is fp8, but text_encoder of"),
    ],
)
def test_settings_that_contradict_are_refused(
    settings: dict[str, object], sentence: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        family_class("flux2").base_model_notes(config_of(folders["nf4"], **settings))
