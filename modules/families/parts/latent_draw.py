"""From what is cached of a picture to what a step of latent diffusion needs, in the loader's workers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from modules.families.parts.diffusion_options import DiffusionOptions
from modules.families.parts.latents import draw_latents, mask_weights
from modules.families.parts.noise import draw_noise
from modules.families.parts.prompts import Prompts
from modules.families.parts.timesteps import draw_timestep

TOLD = "captions"  # which captions the cached text is of, int64 [N]
HIDDEN, POOLED, TOKENS = ".hidden", ".pooled", ".tokens"  # after an encoder's name


@dataclass(frozen=True)
class LatentDraw:
    """Draws latents, noise and timestep; looks up the caption's encoding, or turns it into token numbers."""

    options: DiffusionOptions
    shares: Tensor  # [T], how much of the picture is left at each noise level
    latent_scale: float
    unmasked_weight: float
    prompts: Prompts
    read_later: tuple[str, ...]  # the encoders whose text is not cached
    no_caption: Mapping[str, Tensor]  # the cached encoders' text for an empty caption

    def __call__(self, cached: dict[str, Tensor], caption: str, generator: torch.Generator) -> dict[str, Tensor]:
        """latents and noise [4, h, w], timestep and share []; for each encoder NAME.hidden and NAME.pooled, or
        NAME.tokens [W, 77]; what else was cached: sizes [6], hole [1, h, w] and kept [4, h, w]; weights [1, h, w] of
        mean 1 where there is a mask."""
        options = self.options
        latents = draw_latents(cached, self.latent_scale, generator)
        noise = draw_noise(latents.shape, options.offset_noise, generator)
        timestep = draw_timestep(
            options.timestep_distribution, len(self.shares), options.min_timestep, options.max_timestep, generator
        )
        drawn = {"latents": latents, "noise": noise, "timestep": timestep, "share": self.shares[timestep]}
        for encoder in self.read_later:
            drawn[encoder + TOKENS] = self.prompts.numbers(encoder, caption)
        drawn |= self._text(cached, caption)
        if "mask" in cached:
            drawn["weights"] = mask_weights(cached["mask"], self.unmasked_weight)
        if "hole" in cached:
            drawn |= {"hole": cached["hole"].to(torch.float32), "kept": cached["kept"] * self.latent_scale}
        return drawn | {name: cached[name] for name in ("sizes",) if name in cached}

    def _text(self, cached: dict[str, Tensor], caption: str) -> Mapping[str, Tensor]:
        if TOLD not in cached:
            return {}
        places = (cached[TOLD] == caption_number(caption)).nonzero()
        if not len(places):
            return self.no_caption  # a caption that is dropped is not among the picture's own
        place = int(places[0])
        return {name: tensor[place] for name, tensor in cached.items() if name.endswith((HIDDEN, POOLED))}


def caption_number(caption: str) -> int:
    """64 bits that tell captions apart."""
    return int.from_bytes(hashlib.sha256(caption.encode()).digest()[:8], "little", signed=True)
