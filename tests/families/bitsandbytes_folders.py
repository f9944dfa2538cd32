"""Model folders in the layout of bitsandbytes, written without it; that it writes the same is what the files in
tests/fixtures/bitsandbytes are for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from modules.diffusion.quantized import NF4_LEVELS, QuantizedLinear, quantize_

NETWORKS = ("transformer", "text_encoder")


def quantized_folder(source: Path, folder: Path, kind: str) -> Path:
    """A copy of a tiny FLUX.2 whose linear layers are in `kind`, "nf4" or "int8"."""
    return _copy(source, folder, kind, dequantized=False)


def dequantized_folder(source: Path, folder: Path, kind: str) -> Path:
    """A copy with plain fp32 weights, those that the bits of `quantized_folder` stand for."""
    return _copy(source, folder, kind, dequantized=True)


def _copy(source: Path, folder: Path, kind: str, *, dequantized: bool) -> Path:
    shutil.copytree(source, folder)
    for name in NETWORKS:
        (file,) = (folder / name).glob("*.safetensors")
        found: dict[str, Tensor] = {}
        for key, weight in load_file(file).items():
            is_linear = weight.dim() == 2 and not key.endswith(("embed_tokens.weight", "lm_head.weight"))
            if not is_linear:
                found[key] = weight
            elif dequantized:
                found[key] = _quantized(weight, kind).weight
            else:
                found |= _stored(key.removesuffix(".weight"), _quantized(weight, kind), kind)
        save_file(found, file, metadata={"format": "pt"})
        if not dequantized:
            config = json.loads((folder / name / "config.json").read_text())
            is_int8 = kind == "int8"
            config["quantization_config"] = {
                "quant_method": "bitsandbytes",
                "load_in_4bit": not is_int8,
                "load_in_8bit": is_int8,
                "bnb_4bit_quant_type": "fp4" if is_int8 else "nf4",
            }
            (folder / name / "config.json").write_text(json.dumps(config))
    return folder


def _quantized(weight: Tensor, kind: str) -> QuantizedLinear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False).requires_grad_(False)
    layer.weight.data = weight.float()
    quantize_(layer, kind, torch.device("cpu"))
    assert isinstance(layer, QuantizedLinear)
    return layer


def _stored(name: str, layer: QuantizedLinear, kind: str) -> dict[str, Tensor]:
    assert layer._scales is not None
    if kind == "int8":
        weight_format = torch.tensor(0, dtype=torch.uint8)
        scales = layer._scales.flatten() * 127
        return {f"{name}.weight": layer._bits, f"{name}.SCB": scales, f"{name}.weight_format": weight_format}
    shape = [layer.out_features, layer.in_features]
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": shape}).encode()
    return {
        f"{name}.weight": layer._bits.flatten()[: -(-shape[0] * shape[1] // 2)].view(-1, 1),
        f"{name}.weight.absmax": layer._scales.flatten(),
        f"{name}.weight.quant_map": torch.tensor(NF4_LEVELS),
        f"{name}.weight.quant_state.bitsandbytes__nf4": torch.frombuffer(bytearray(state), dtype=torch.uint8),
    }
