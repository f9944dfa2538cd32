"""Variance-preserving diffusion (DDPM; Ho et al. 2020, arXiv:2006.11239).

x_t = sqrt(alpha_bar_t) x_0 + sqrt(1 - alpha_bar_t) epsilon (equation 4); alpha_bar_t is diffusers' alphas_cumprod[t].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from modules.diffusion.samplers import build_scheduler


def alphas_cumprod(scheduler: Mapping[str, Any], zero_terminal_snr: bool) -> Tensor:
    """alpha_bar_t, fp32 [T], of the noise schedule in a diffusers scheduler's config.

    `zero_terminal_snr` rescales it to end at exactly 0, that is in pure noise (Lin et al. 2023, arXiv:2305.08891,
    algorithm 1).
    """
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler  # loader workers start without diffusers

    rescaled = zero_terminal_snr or bool(scheduler.get("rescale_betas_zero_snr", False))
    schedule: Tensor = build_scheduler(DDPMScheduler, scheduler, rescale_betas_zero_snr=rescaled).alphas_cumprod
    return schedule


def add_noise(x_0: Tensor, epsilon: Tensor, alpha_bar: Tensor) -> Tensor:
    """x_t [B, ...] for alpha_bar_t [B]."""
    signal, noise = _coefficients(x_0, alpha_bar)
    return signal * x_0 + noise * epsilon


def velocity(x_0: Tensor, epsilon: Tensor, alpha_bar: Tensor) -> Tensor:
    """v = sqrt(alpha_bar_t) epsilon - sqrt(1 - alpha_bar_t) x_0, [B, ...] (Salimans & Ho 2022, arXiv:2202.00512)."""
    signal, noise = _coefficients(x_0, alpha_bar)
    return signal * epsilon - noise * x_0


def compute_snr(alpha_bar: Tensor) -> Tensor:
    """Signal-to-noise ratio alpha_bar_t / (1 - alpha_bar_t), [B]."""
    return alpha_bar / (1 - alpha_bar)


def sample_noise(shape: torch.Size, offset: float, generator: torch.Generator) -> Tensor:
    """Gaussian noise fp32 [C, h, w]; `offset` is the strength of an additional shift of each whole channel.

    Offset noise lets a model learn very dark and very bright images (Guttenberg 2023, "Diffusion with Offset Noise").
    """
    noise = torch.randn(shape, generator=generator)
    if offset:
        noise = noise + offset * torch.randn((shape[0], 1, 1), generator=generator)
    return noise


def _coefficients(x_0: Tensor, alpha_bar: Tensor) -> tuple[Tensor, Tensor]:
    """sqrt(alpha_bar_t) and sqrt(1 - alpha_bar_t), each [B, 1, ...] to broadcast over `x_0`."""
    alpha_bar = alpha_bar.to(x_0.dtype)
    broadcast = (-1, *([1] * (x_0.ndim - 1)))
    return (alpha_bar**0.5).view(broadcast), ((1 - alpha_bar) ** 0.5).view(broadcast)
