"""A tiny SDXL whose UNet has all the blocks of the real one, by which files name its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from diffusers import UNet2DConditionModel

SDXL_BLOCKS: Final[dict[str, object]] = {
    "layers_per_block": 2,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 1, 2),
    "use_linear_projection": True,
}


def with_the_real_blocks(folder: Path) -> Path:
    """Give the tiny SDXL in `folder` another UNet."""
    small = UNet2DConditionModel.load_config(folder / "unet")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unet = UNet2DConditionModel.from_config(small, **SDXL_BLOCKS, block_out_channels=(8, 16, 16))
    unet.save_pretrained(folder / "unet")
    return folder
