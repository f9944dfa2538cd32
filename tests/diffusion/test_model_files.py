"""Model files as they are published: sharded, in scaled fp8 and int8, and GGUF; to the bit by the peers' formulas."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.model_files import gguf_file
from modules.diffusion.model_files.open_file import open_model_file
from modules.files.gguf_header import GGUF_FORMATS

E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")


def text(**settings: object) -> Tensor:
    """As in NAME.comfy_quant."""
    return torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)


def read_all(file: Path) -> dict[str, Tensor]:
    with open_model_file(file) as source:
        found = {name: source.read(name).clone() for name in source.names}
        assert all(source.shape(name) == tuple(tensor.shape) for name, tensor in found.items())
        assert all(source.stored_dtype(name) == tensor.dtype for name, tensor in found.items())
    return found


def refused(file: Path, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_all(file)


def weight(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_shards_are_one_file_and_a_missing_one_is_named(tmp_path: Path) -> None:
    first, second = {"a": weight(3, 2).bfloat16()}, {"b": weight(4)}
    save_file(first, tmp_path / "x-00001-of-00002.safetensors")
    save_file(second, tmp_path / "x-00002-of-00002.safetensors")
    index = tmp_path / "x.safetensors.index.json"
    places = {"a": "x-00001-of-00002.safetensors", "b": "x-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": places}))
    found = read_all(index)
    assert torch.equal(found["a"], first["a"])
    assert torch.equal(found["b"], second["b"])
    index.write_text(json.dumps({"weight_map": {**places, "c": places["a"]}}))
    refused(index, r"says that x-00001-of-00002.safetensors has 'c', which it has not")
    index.write_text(json.dumps({"weight_map": {**places, "c": "x-00003.safetensors"}}))
    refused(index, r"names 'x-00003.safetensors', which is not beside it")
    index.write_text(json.dumps({"weight_map": {"c": "../c.safetensors"}}))
    refused(index, r"names '../c.safetensors', which is no .safetensors file beside it")


def broadcast(stored: Tensor, scale: Tensor) -> Tensor:
    """comfy_kitchen's kernels, ai-toolkit and, with a scale in bf16, musubi-tuner: multiplied in fp32, rounded once."""
    return (stored.float() * scale.float()).to(BF16)


def blocks_of_inputs(stored: Tensor, scale: Tensor) -> Tensor:
    """musubi-tuner: [out, n, 1]."""
    rows, count, _ = scale.shape
    whole: Tensor = stored.to(scale.dtype).view(rows, count, -1) * scale
    return whole.view(stored.shape).to(BF16)


def blocks_of_both(stored: Tensor, scale: Tensor) -> Tensor:
    """transformers' finegrained fp8: 128 x 128, the last ones smaller."""
    wide = scale.repeat_interleave(128, 0)[: len(stored)].repeat_interleave(128, 1)[:, : stored.shape[1]]
    return (stored.float() * wide).to(BF16)


SCALED: Mapping[str, tuple[torch.dtype, str, Tensor, Mapping[str, Tensor], Any]] = {
    "scale_weight": (E4M3, "scale_weight", torch.tensor([0.0123]), {"scale_input": torch.ones(1)}, broadcast),
    "e5m2": (E5M2, "scale_weight", torch.tensor(0.0123), {}, broadcast),
    "weight_scale": (
        E4M3,
        "weight_scale",
        torch.tensor(0.0123),
        {"input_scale": torch.tensor(0.5), "comfy_quant": text(format="float8_e4m3fn")},
        broadcast,
    ),
    "each output": (E4M3, "weight_scale", weight(192, 1).abs(), {}, broadcast),
    "each output, bf16": (E4M3, "scale_weight", weight(192, 1).abs().bfloat16(), {}, broadcast),
    "blocks of inputs": (E4M3, "scale_weight", weight(192, 5, 1).abs().bfloat16(), {}, blocks_of_inputs),
    "blocks of both": (E4M3, "weight_scale_inv", weight(2, 3).abs(), {}, blocks_of_both),
    "int8": (
        torch.int8,
        "weight_scale",
        torch.tensor(0.01),
        {"comfy_quant": text(format="int8_tensorwise")},
        broadcast,
    ),
    "int8 each output": (torch.int8, "weight_scale", weight(192, 1).abs(), {}, broadcast),
}


@pytest.mark.parametrize("form", SCALED)
def test_scaled_weights_are_those_of_the_peers(form: str, tmp_path: Path) -> None:
    dtype, name, scale, more, formula = SCALED[form]
    stored = (weight(192, 320) * 20).to(dtype)
    others = {"norm.weight": weight(7).bfloat16(), "b.bias": weight(3), "scaled_fp8": torch.zeros(0, dtype=E4M3)}
    file = tmp_path / "x.safetensors"
    tensors = {"a.weight": stored, f"a.{name}": scale, **{f"a.{end}": each for end, each in more.items()}}
    save_file({**tensors, **others}, file)
    found = read_all(file)
    assert found.keys() == {"a.weight", "norm.weight", "b.bias"}
    assert torch.equal(found["a.weight"], formula(stored, scale))
    assert torch.equal(found["norm.weight"], others["norm.weight"])
    assert torch.equal(found["b.bias"], others["b.bias"])
    with open_model_file(file) as source:
        assert source.quantized_as == ("scaled int8" if dtype == torch.int8 else "scaled fp8")


def test_beside_fp16_weights_become_fp16(tmp_path: Path) -> None:
    stored, scale = (weight(4, 4) * 20).to(E4M3), torch.tensor(0.01)
    save_file({"a.weight": stored, "a.scale_weight": scale, "n": weight(3).half()}, tmp_path / "x.safetensors")
    assert torch.equal(read_all(tmp_path / "x.safetensors")["a.weight"], (stored.float() * scale).half())


def rotated(matrix: Tensor, group: int) -> Tensor:
    """ConvRot: regular Hadamard matrices of 16, built from their definition in the paper."""
    four = torch.tensor([[1.0, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2
    turn = torch.einsum("ab,cd->acbd", four, four).reshape(16, 16)
    assert group == 16
    return (matrix.view(len(matrix), -1, group) @ turn).view(matrix.shape)


@pytest.mark.parametrize("place", ["comfy_quant", "params", "header", "header without the prefix"])
def test_rotated_int8_is_turned_back(place: str, tmp_path: Path) -> None:
    plain = weight(8, 64)
    turned = rotated(plain, 16)
    scale = turned.abs().amax(1, keepdim=True) / 127
    stored = (turned / scale).round().to(torch.int8)
    settings: dict[str, object] = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 16}
    if place == "params":
        settings = {"format": "int8_tensorwise", "params": {"convrot": True, "convrot_groupsize": 16}}
    layer = "model.diffusion_model.a"
    tensors = {f"{layer}.weight": stored, f"{layer}.weight_scale": scale}
    metadata = {}
    if "header" in place:
        name = "a" if "without" in place else layer
        metadata["_quantization_metadata"] = json.dumps({"format_version": "1.0", "layers": {name: settings}})
    else:
        tensors[f"{layer}.comfy_quant"] = text(**settings)
    save_file(tensors, tmp_path / "x.safetensors", metadata=metadata)
    found = read_all(tmp_path / "x.safetensors")[f"{layer}.weight"]
    torch.testing.assert_close(found.float(), rotated(stored.float() * scale, 16), rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(found.float(), plain, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a.weight_scale": torch.ones(1)}, "has 'a.weight_scale', but no 'a.weight'"),
        ({"a.weight": weight(2, 2), "a.weight_scale": torch.ones(1)}, "has 'a.weight' in float32 with a scale"),
        (
            {"a.weight": weight(2, 2).to(E4M3), "a.weight_scale": torch.ones(3)},
            r"'a.weight' of the shape \[2, 2\] has a scale of the shape \[3, 1\], which is not read",
        ),
        (
            {"a.weight": weight(2, 2).to(E4M3), "a.weight_scale": torch.ones(1), "a.comfy_quant": text(format="nvfp4")},
            "has 'a' in the format nvfp4; of quantised files are read float8_e4m3fn",
        ),
        (
            {"a.weight": weight(2, 2).to(E4M3), "a.weight_scale": torch.ones(1), "a.comfy_quant": text(format=3)},
            "has 'a.comfy_quant', which is wrong in 'format'",
        ),
        (
            {
                "a.weight": torch.ones(2, 48, dtype=torch.int8),
                "a.weight_scale": torch.ones(1),
                "a.comfy_quant": text(format="int8_tensorwise", convrot=True, convrot_groupsize=48),
            },
            "was rotated over 48 inputs, which is no power of 4",
        ),
        (
            {"a.weight": weight(2, 2).to(E4M3), "a.weight_scale": torch.tensor(math.inf)},
            "contains values that are no finite numbers",
        ),
    ],
)
def test_scales_that_do_not_fit_are_refused(tensors: dict[str, Tensor], words: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "x.safetensors")
    refused(tmp_path / "x.safetensors", words)


def write_gguf(file: Path, tensors: Mapping[str, tuple[Tensor, str]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """By the package's own writer, each tensor in a format of GGUF; `shapes` are those before a reshape."""
    import gguf

    writer = gguf.GGUFWriter(file, "flux")
    for name, shape in shapes.items():
        writer.add_array(f"comfy.gguf.orig_shape.{name}", [*shape])
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc"])
    for name, (tensor, form) in tensors.items():
        kind = gguf.GGMLQuantizationType[form]
        data = tensor.numpy()
        if form.startswith("IQ") or form.endswith("_K"):  # which the package only reads
            block, size = gguf.GGML_QUANT_SIZES[kind]
            count = data.size // block * size
            data = np.random.default_rng(0).integers(0, 60, (len(data), count // len(data)), dtype=np.uint8)
        else:
            data = gguf.quants.quantize(data, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@needs_gguf
def test_the_formats_of_gguf_are_those_of_the_package() -> None:
    import gguf

    for number, (name, block, size) in GGUF_FORMATS.items():
        assert gguf.GGMLQuantizationType(number).name == name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (block, size)


@needs_gguf
def test_gguf_is_read_as_its_package_dequantises_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    formats = [form for form, block, _ in GGUF_FORMATS.values() if block > 1]
    tensors = {form: (weight(6, 512), form) for form in formats}
    plain = {"F32": (weight(3), "F32"), "F16": (weight(2, 3), "F16"), "BF16": (weight(2, 3).bfloat16().float(), "BF16")}
    file = tmp_path / "x.gguf"
    write_gguf(file, {**tensors, **plain, "conv": (weight(4, 256), "Q8_0")}, {"conv": (16, 64, 1, 1)})
    monkeypatch.setattr(gguf_file, "_PIECE", 2 * 512)  # several pieces
    found = read_all(file)
    theirs = {each.name: gguf.quants.dequantize(each.data, each.tensor_type) for each in gguf.GGUFReader(file).tensors}
    for name in formats:
        assert torch.equal(found[name], torch.from_numpy(theirs[name].copy()).bfloat16()), name
    assert found["conv"].shape == (16, 64, 1, 1)
    assert torch.equal(found["conv"].flatten(), torch.from_numpy(theirs["conv"].copy()).bfloat16().flatten())
    torch.testing.assert_close(found["Q8_0"].float(), tensors["Q8_0"][0], rtol=0.01, atol=0.03)
    assert torch.equal(found["F32"], plain["F32"][0])
    assert torch.equal(found["BF16"], plain["BF16"][0].bfloat16())
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    refused(
        file, r"is in GGUF Q8_0 .*, which needs the package gguf; it is not installed.\s*Install it: .*install gguf"
    )


def gguf_bytes(
    *,
    magic: bytes = b"GGUF",
    counts: tuple[int, int] = (1, 0),
    fields: bytes = b"",
    sides: tuple[int, ...] = (4,),
    kind: int = 0,
    offset: int = 0,
    data: int = 16,
) -> bytes:
    """A file with one tensor "a"."""
    head = magic + struct.pack("<IQQ", 3, *counts) + fields
    head += struct.pack("<Q", 1) + b"a" + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, kind, offset)
    return head + b"\0" * (-len(head) % 32) + b"\0" * data


def field(kind: int, value: bytes, name: bytes = b"k") -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def test_a_plain_gguf_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(sides=(2, 1)))
    assert read_all(tmp_path / "x.gguf")["a"].shape == (1, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is truncated"),
        (gguf_bytes(magic=b"GGML"), "does not begin as one"),
        (gguf_bytes()[:30], "is truncated: it ends in its header"),
        (gguf_bytes(counts=(1 << 63, 0)), "says that it has 9,223,372,036,854,775,808 tensors"),
        (gguf_bytes(counts=(2, 0)), "is damaged"),
        (gguf_bytes(counts=(1, 1), fields=field(9, struct.pack("<IQ", 8, 1 << 60))), "a list of .* texts"),
        (gguf_bytes(counts=(1, 1), fields=field(9, struct.pack("<IQ", 0, 1 << 60))), "header has more than 64 MiB"),
        (gguf_bytes(counts=(1, 1), fields=field(9, struct.pack("<IQ", 9, 1))), "a list of the type 9"),
        (gguf_bytes(counts=(1, 1), fields=field(8, struct.pack("<Q", 1 << 60))), "a text of .* bytes"),
        (gguf_bytes(counts=(1, 1), fields=field(99, b"")), "a value of the type 99"),
        (
            gguf_bytes(counts=(1, 1), fields=field(4, struct.pack("<I", 3), b"general.alignment")),
            "its alignment is 3, not a power of two",
        ),
        (gguf_bytes(sides=(1 << 62, 1 << 62)), r"'a' ends at the byte .* of"),
        (gguf_bytes(offset=1 << 40), r"'a' ends at the byte .* of"),
        (
            gguf_bytes(counts=(2, 0), fields=struct.pack("<QcIQIQ", 1, b"b", 1, 4, 0, 0)),
            "its tensors have 32 bytes, and the file has 16 for them",
        ),
        (gguf_bytes(sides=(0,)), r"'a' has the sides \[0\], which F32 cannot have"),
        (gguf_bytes(sides=(31,), kind=8), r"'a' has the sides \[31\], which Q8_0 cannot have"),
        (gguf_bytes(sides=(1,) * 9), "'a' has 9 dimensions"),
        (gguf_bytes(kind=40), "in the format 40 of GGUF; Tandem reads F32"),
        (
            gguf_bytes(
                counts=(1, 1),
                fields=field(9, struct.pack("<IQ2i", 5, 2, 1 << 30, 8), b"comfy.gguf.orig_shape.a"),
            ),
            r"cannot have had the shape \[1073741824, 8\]",
        ),
    ],
)
def test_a_hostile_gguf_header_is_one_sentence(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    refused(tmp_path / "x.gguf", words)
