"""The figures of docs/stable_diffusion.md, "Memory", are those of the real networks and optimizers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from modules.config import TrainConfig
from modules.training.optim.optimizers import build_optimizer
from tests.runs import ROOT

# unet/config.json of stable-diffusion-v1-5/stable-diffusion-v1-5 and of stabilityai/stable-diffusion-xl-base-1.0
UNETS: dict[str, dict[str, Any]] = {
    "SD 1.5": {
        "block_out_channels": (320, 640, 1280, 1280),
        "cross_attention_dim": 768,
        "attention_head_dim": 8,
    },
    "SDXL": {
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 2048,
        "attention_head_dim": (5, 10, 20),
        "transformer_layers_per_block": (1, 2, 10),
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
}
FINE_TUNES: dict[str, dict[str, object]] = {
    "Adafactor": {"name": "adafactor"},
    "Adafactor with `beta1`": {"name": "adafactor", "beta1": 0.9},
}


@pytest.fixture(scope="module")
def unets() -> dict[str, nn.Module]:
    """Without memory for their weights."""
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    with torch.device("meta"):
        return {name: UNet2DConditionModel(**config) for name, config in UNETS.items()}


def in_docs(row: str, column: str) -> float:
    """A figure of the table."""
    text = (ROOT / "docs" / "stable_diffusion.md").read_text()
    table = text[text.index("## Memory") : text.index("Too little memory?")]
    titles, *rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in re.findall(r"\|.*\|", table))
    (values,) = [cells for cells in rows if cells[0] == row or cells[0].startswith(f"{row} (")]
    return float(values[titles.index(column) if titles[0] == "" else titles.index(column) + 1].split()[0])


def state_bytes(model: nn.Module, settings: dict[str, object]) -> int:
    """What the optimizer keeps of these weights from its first step on."""
    optimizer: Any = build_optimizer(model.parameters(), TrainConfig.model_validate({"optimizer": settings}))
    for weight in model.parameters():
        weight.grad = torch.empty_like(weight)
    for group in optimizer.param_groups:
        optimizer.init_group(group, beta1=group["betas"][0])
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor))


@pytest.mark.slow
@pytest.mark.parametrize("column", UNETS)
def test_adafactor(unets: dict[str, nn.Module], column: str) -> None:
    weights = sum(weight.numel() for weight in unets[column].parameters())
    assert in_docs("weights of the UNet", column) == round(weights / 1e9, 2)
    for row, settings in FINE_TUNES.items():
        total = 8 * weights + state_bytes(unets[column], settings)  # weights and gradients in fp32
        assert in_docs(f"fine-tune, {row}", column) == pytest.approx(total / 1e9, abs=0.051), row


def test_adamw(unets: dict[str, nn.Module]) -> None:
    for column, unet in unets.items():
        weights = sum(weight.numel() for weight in unet.parameters())
        assert in_docs("fine-tune, AdamW", column) == pytest.approx(16 * weights / 1e9, abs=0.051)
