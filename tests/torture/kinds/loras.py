"""LoRA files and embeddings, read, continued and converted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch

from modules.checkpoint.formats import LoraWeights, check_is_lora, read_adapter, read_embedding, read_lora, write_lora
from modules.checkpoint.formats.conversion import convert_dtype, convert_embedding, convert_lora, detect_architecture
from modules.checkpoint.formats.embeddings import write_embedding
from modules.config import validate
from modules.training.methods.lora_from import check_lora_from
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, file_changed, file_replaced, safetensors_changed

_PREFIXES = {"unet": ("unet", "lora_unet"), "text_encoder": ("text_encoder", "lora_te")}
_MODULE = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        places.seeds.mkdir(parents=True)
        torch.manual_seed(0)
        text = "text_model.encoder.layers.0.self_attn.q_proj"
        weights = [
            LoraWeights("unet", _MODULE, torch.randn(2, 8), torch.randn(6, 2), 1.0, torch.rand(6)),
            LoraWeights("unet", "conv_in", torch.randn(2, 4, 3, 3), torch.randn(6, 2, 1, 1), 2.0, torch.rand(6)),
            LoraWeights("text_encoder", text, torch.randn(2, 8), torch.randn(8, 2), 2.0, torch.rand(8)),
        ]
        metadata = {"modelspec.architecture": "stable-diffusion-v1/lora", "ss_network_dim": "2"}
        for layout in ("kohya", "diffusers"):
            write_lora(places.seeds / f"{layout}.safetensors", weights, layout, _PREFIXES, metadata, torch.float32)
        write_embedding(places.seeds / "one.safetensors", "<cat>", {"text_encoder": torch.randn(2, 8)}, {})
        both = {"text_encoder": torch.randn(2, 8), "text_encoder_2": torch.randn(2, 12)}
        write_embedding(places.seeds / "two.safetensors", "<cat>", both, {})

    def make(self, draw: Random) -> None:
        seed = draw.choice(sorted(self._places.seeds.iterdir()))
        file = self._places.case / draw.choice(("x.safetensors", "x.safetensors", "x.bin", "x\x1b[2J.safetensors"))
        file.write_bytes(seed.read_bytes())
        if draw.random() < 0.06:
            file_replaced(file, self._places.outside, draw)
        else:
            file_changed(file, safetensors_changed if draw.random() < 0.8 else bytes_changed, draw)
        (self._places.case / "of").write_text(f"{seed.stem}\n{file.name}")

    def read(self) -> str:
        case = self._places.case
        seed, name = (case / "of").read_text().split("\n")
        file = case / name
        if seed in ("one", "two"):
            _, vectors = read_embedding(file)
            assert all(vector.dim() == 2 and vector.numel() for vector in vectors.values())
            convert_embedding(file, case / "out.safetensors", torch.float16)
            read_embedding(case / "out.safetensors")
            return ""
        check_is_lora(file)
        check_lora_from(validate({"method": "lora", "lora_from": str(file)}, "The config"))
        weights = read_lora(file, _PREFIXES)
        for one in weights:
            assert one.delta().shape == one.matrix_shape
        for adapter in read_adapter(file, _PREFIXES):
            assert adapter.delta(torch.zeros(adapter.matrix_shape)).shape == adapter.matrix_shape
        detect_architecture(file)
        convert_dtype(file, case / "half.safetensors", torch.bfloat16)
        _convert(file, case)
        return ""


def _convert(file: Path, case: Path) -> None:
    for layout in ("kohya", "diffusers"):
        out = case / f"out-{layout}.safetensors"
        convert_lora(file, out, layout, _PREFIXES, torch.float32)
        assert len(read_lora(out, _PREFIXES)) == len(read_lora(file, _PREFIXES))
