"""Pipelines with random adapters, and what the trainer would write of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer

from modules.checkpoint.formats import LoraWeights

SD = {"unet": ("unet", "lora_unet"), "text_encoder": ("text_encoder", "lora_te")}
SDXL = {
    "unet": ("unet", "lora_unet"),
    "text_encoder": ("text_encoder", "lora_te1"),
    "text_encoder_2": ("text_encoder_2", "lora_te2"),
}
ATTENTION = r".*(to_q|to_k|to_v|to_out\.0|q_proj|k_proj|v_proj|out_proj)"
# As the trainer's presets choose (modules/training/methods/lora.py).
ATTENTION_MLP = rf"{ATTENTION[:-1]}|ff\.net\.(0\.proj|2)|fc1|fc2)"
LINEAR = r".*(to_[qkv]|to_out\.0|ff\.net\.(0\.proj|2)|proj_in|proj_out|time_emb_proj|linear_1|linear_2|[qkv]_proj|out_proj|fc1|fc2|text_projection)"  # noqa: E501
ALL = rf"{LINEAR[:-1]}|conv1|conv2|conv_shortcut|conv|conv_in|conv_out)"


def adapted(
    folder: Path, kind: Any, names: dict[str, tuple[str, str]], targets: str, dora: bool = False, **more: Any
) -> Any:
    """A pipeline with random adapters in all its parts."""
    pipeline = kind.from_pretrained(folder)
    torch.manual_seed(3)
    for part in names:
        patterns = more if part == "unet" else {}
        settings: dict[str, Any] = {"r": 3, "lora_alpha": 6, "target_modules": targets, "use_dora": dora}
        inject_adapter_in_model(LoraConfig(**(settings | patterns)), getattr(pipeline, part), "default")
        for name, weight in getattr(pipeline, part).named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
            if "magnitude" in name:
                weight.data *= 1 + 0.2 * torch.rand_like(weight)
    return pipeline


def weights_in(pipeline: Any, names: dict[str, tuple[str, str]]) -> list[LoraWeights]:
    """What was injected, as the trainer hands it over."""
    found = []
    for part in names:
        for name, layer in getattr(pipeline, part).named_modules():
            if isinstance(layer, LoraLayer):
                lora: Any = layer
                dora = "default" in lora.lora_magnitude_vector
                found.append(
                    LoraWeights(
                        part,
                        name,
                        lora.lora_A["default"].weight,
                        lora.lora_B["default"].weight,
                        float(lora.lora_alpha["default"]),
                        lora.lora_magnitude_vector["default"].weight.flatten() if dora else None,
                    )
                )
    assert found
    return found


def layers_with_a_lora(pipeline: Any, names: dict[str, tuple[str, str]]) -> list[tuple[str, str]]:
    """What was injected or loaded, to the last layer; some change a tiny image little."""
    return [
        (part, name)
        for part in names
        for name, layer in getattr(pipeline, part).named_modules()
        if isinstance(layer, LoraLayer)
    ]
