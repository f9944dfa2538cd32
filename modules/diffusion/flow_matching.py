"""Rectified flow (Liu et al. 2022, arXiv:2209.03003; Lipman et al. 2022, arXiv:2210.02747).

x_t = (1 - t) x_0 + t x_1 leads in a straight line from the image x_0 to noise x_1; its velocity is dx_t/dt = x_1 - x_0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from torch import Tensor

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
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    # By default the scheduler spends its last step on t = 0.001 to 0.
    scheduler.set_timesteps(sigmas=[1 - step / steps for step in range(steps)])
    x_t = x_1
    for timestep in scheduler.timesteps:
        t = (timestep / TIMESTEP_SCALE).to(x_1).expand(len(x_1))
        x_t = scheduler.step(velocity(x_t, t), timestep, x_t, return_dict=False)[0]
    return x_t
