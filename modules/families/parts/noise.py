"""Variance-preserving diffusion in steps (Ho et al. 2020, arXiv:2006.11239): x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) e.

a_t is what diffusers calls alphas_cumprod[t]: the share of the picture that is left after t steps, e is noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import Tensor


def signal_shares(scheduler: Mapping[str, Any], zero_terminal_snr: bool) -> Tensor:
    """a_t [T] of the schedule that the config of a diffusers scheduler describes.

    With `zero_terminal_snr` it is rescaled so that a_T is 0: the last step then is noise and nothing else
    (Lin et al. 2023, arXiv:2305.08891, algorithm 1).
    """
    rescaled = zero_terminal_snr or bool(scheduler.get("rescale_betas_zero_snr", False))
    shares: Tensor = DDPMScheduler.from_config(dict(scheduler), rescale_betas_zero_snr=rescaled).alphas_cumprod
    return shares


def add_noise(x_0: Tensor, noise: Tensor, share: Tensor) -> Tensor:
    """x_t [B, ...] for a_t [B]."""
    picture, rest = _factors(x_0, share)
    return picture * x_0 + rest * noise


def velocity(x_0: Tensor, noise: Tensor, share: Tensor) -> Tensor:
    """v = sqrt(a_t) e - sqrt(1 - a_t) x_0, [B, ...] (Salimans & Ho 2022, arXiv:2202.00512)."""
    picture, rest = _factors(x_0, share)
    return picture * noise - rest * x_0


def signal_to_noise(share: Tensor) -> Tensor:
    """a_t / (1 - a_t), [B]."""
    return share / (1 - share)


def draw_noise(shape: torch.Size, offset: float, generator: torch.Generator) -> Tensor:
    """Noise [C, h, w]; `offset` also shifts each channel as a whole, so that very dark and very bright pictures can be
    learned (Guttenberg 2023, "Diffusion with offset noise")."""
    noise = torch.randn(shape, generator=generator)
    if offset:
        noise = noise + offset * torch.randn((shape[0], 1, 1), generator=generator)
    return noise


def _factors(x_0: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    share = share.to(x_0.dtype)
    over_pixels = (-1, *([1] * (x_0.ndim - 1)))
    return (share**0.5).view(over_pixels), ((1 - share) ** 0.5).view(over_pixels)
