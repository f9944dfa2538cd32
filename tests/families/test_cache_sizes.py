"""The sizes of cached images in docs/data.md are those of what the families encode."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import diffusers
import torch

from modules.diffusion.latent_space import LatentSpace
from modules.facts import all_facts
from modules.families._by_name import family_class

PAGE = Path(__file__).parents[2] / "docs/data.md"
SIDE = 64  # at which images are encoded here
TINY = {"block_out_channels": (4,) * 4, "norm_num_groups": 1, "layers_per_block": 1}
DOWN = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}


def bytes_per_pixel(channels: int, step: int) -> float:
    """Of what is cached of an image, with an autoencoder of as many channels as the published ones, which divides sides
    by `step`; the one here by 8."""
    kind = diffusers.AutoencoderKLFlux2 if channels == 32 else diffusers.AutoencoderKL
    vae = kind(latent_channels=channels, **TINY, **DOWN)
    pixels = torch.zeros((1, 3, SIDE, SIDE), dtype=torch.uint8)
    encoded = LatentSpace.of(vae).encode(vae, pixels, "sample")
    return sum(tensor.nbytes for tensor in encoded.values()) / SIDE**2 * (8 / step) ** 2


def latents_of(family: str) -> tuple[int, int]:
    """The channels of the latents, of the family's first known network or by the default of its class in diffusers, and
    by how much their sides are smaller than the image's."""
    facts = all_facts()[family]
    known: dict[str, Any] = dict(next((each.networks.get("transformer", {}) for each in facts.models.values()), {}))
    parameters = inspect.signature(getattr(diffusers, facts.transformer or "UNet2DConditionModel")).parameters
    channels = int(known.get("in_channels", parameters["in_channels"].default))
    if channels >= 64:  # of patches of 2 x 2
        return channels // 4, 8
    return channels, getattr(family_class(family), "pixels_per_latent", 8)


def test_the_sizes_of_a_cache_are_those_of_the_manual() -> None:
    rows = re.findall(r"^\| (`.+`) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    listed = [name for names, *_ in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(listed) == sorted(name for name, facts in all_facts().items() if facts.network != "other")
    for names, *sizes in rows:
        ((channels, step),) = {latents_of(name) for name in re.findall(r"`(\w+)`", names)}
        gigabytes = [1000 * bytes_per_pixel(channels, step) * side**2 / 1e9 for side in (512, 768, 1024)]
        assert sizes == [f"{each:.2f}" if each < 1 else f"{each:.1f}" for each in gigabytes]
