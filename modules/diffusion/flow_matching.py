"""Rectified flow (Liu et al. 2022, arXiv:2209.03003; Lipman et al. 2022, arXiv:2210.02747).

x_t = (1 - t) x_0 + t x_1 leads in a straight line from the image x_0 to noise x_1; its velocity is dx_t/dt = x_1 - x_0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modules.diffusion.flow_options import FlowOptions, SigmaWeighting
from modules.diffusion.timesteps import TimestepDistribution

TIMESTEP_SCALE = 1000.0  # diffusers' networks and schedulers count t in [0, 1] as 0 to 1000


def sample_t(distribution: TimestepDistribution, shift: float, generator: torch.Generator) -> Tensor:
    """t in [0, 1], fp32 []; `shift` multiplies its odds t / (1 - t) (Esser et al. 2024, arXiv:2403.03206, eq. 23)."""
    if distribution == "uniform":
        t = torch.rand((), generator=generator)
    else:
        t = torch.sigmoid(torch.randn((), generator=generator))
    return shift * t / (1 + (shift - 1) * t)


def integrate(velocity: Callable[[Tensor, Tensor], Tensor], x_1: Tensor, steps: int, shift: float) -> Tensor:
    """x_0 [B, ...] from noise x_1 [B, ...] in `steps` Euler steps; `velocity(x_t, t)` takes x_t [B, ...] and t [B]."""
    # here, for loader workers start without diffusers
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    # By default the scheduler spends its last step on t = 0.001 to 0.
    scheduler.set_timesteps(sigmas=[1 - step / steps for step in range(steps)])
    x_t = x_1
    for timestep in scheduler.timesteps:
        t = (timestep / TIMESTEP_SCALE).to(x_1).expand(len(x_1))
        x_t = scheduler.step(velocity(x_t, t), timestep, x_t, return_dict=False)[0]
    return x_t


@dataclass(frozen=True)
class SigmaShift:
    """By how much the odds sigma / (1 - sigma) are multiplied for an image of some number of tokens.

    A constant factor, or exp(mu) with mu linear in the tokens, as `calculate_shift` of diffusers' pipelines.
    """

    factor: float = 1.0
    slope: float = 0.0  # of mu, per token
    intercept: float | None = None  # of mu; None for a constant factor
    exponential: bool = True  # otherwise mu is the factor itself (time_shift_type "linear")

    @classmethod
    def of_scheduler(cls, config: Mapping[str, Any], defaults: Mapping[str, float]) -> SigmaShift:
        """That of a FlowMatchEulerDiscreteScheduler, or of a UniPCMultistepScheduler of flow matching; `defaults` are
        those of the pipeline's `calculate_shift`."""
        if not config.get("use_dynamic_shifting"):
            return cls(float(config.get("shift") or config.get("flow_shift") or 1.0))
        known = {**defaults, **{name: config[name] for name in defaults if config.get(name) is not None}}
        low, high = known["base_image_seq_len"], known["max_image_seq_len"]
        slope = (known["max_shift"] - known["base_shift"]) / (high - low)
        exponential = config.get("time_shift_type", "exponential") == "exponential"
        return cls(slope=slope, intercept=known["base_shift"] - slope * low, exponential=exponential)

    def of_tokens(self, tokens: int) -> float:
        """The factor for an image of `tokens` tokens."""
        if self.intercept is None:
            return self.factor
        mu = self.slope * tokens + self.intercept
        return math.exp(mu) if self.exponential else mu


def sample_sigma(options: FlowOptions, shift: float, generator: torch.Generator) -> Tensor:
    """A noise level in [0, 1], fp32 []: 0 is the image, 1 noise (Esser et al. 2024, arXiv:2403.03206, section 3.1)."""
    if options.timestep_distribution == "logit_normal":
        sigma = torch.sigmoid(options.logit_mean + options.logit_std * torch.randn((), generator=generator))
    else:
        u = torch.rand((), generator=generator)
        sigma = u
        if options.timestep_distribution == "mode":
            sigma = 1 - u - options.mode_scale * (torch.cos(math.pi * u / 2) ** 2 - 1 + u)
    return shift * sigma / (1 + (shift - 1) * sigma)


def sigma_weights(sigma: Tensor, weighting: SigmaWeighting) -> Tensor:
    """Loss weights [B] of noise levels [B] (diffusers' `compute_loss_weighting_for_sd3`).

    sigma_sqrt is 1 / sigma^2, limited to sigma >= 0.01; cosmap is eq. 22 of arXiv:2403.03206.
    """
    if weighting == "sigma_sqrt":
        return sigma.clamp_min(0.01) ** -2
    if weighting == "cosmap":
        return 2 / (math.pi * (1 - 2 * sigma + 2 * sigma**2))
    return torch.ones_like(sigma)
