"""Rectified flow (Liu et al. 2022, arXiv:2209.03003; Lipman et al. 2022, arXiv:2210.02747).

From a picture x_0 to noise x_1 leads the straight line x_t = (1 - t) x_0 + t x_1; its velocity is dx_t/dt = x_1 - x_0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from torch import Tensor

TIMESTEP_SCALE = 1000.0  # diffusers' networks and schedulers count t in [0, 1] as 0 to 1000

Distribution = Literal["uniform", "logit_normal"]


def draw_t(distribution: Distribution, shift: float, generator: torch.Generator) -> Tensor:
    """One t in [0, 1] of shape [], its odds t / (1 - t) multiplied by `shift` (Esser et al. 2024, arXiv:2403.03206)."""
    if distribution == "uniform":
        t = torch.rand((), generator=generator)
    else:
        t = torch.sigmoid(torch.randn((), generator=generator))
    return shift * t / (1 + (shift - 1) * t)


def integrate(velocity: Callable[[Tensor, Tensor], Tensor], x_1: Tensor, steps: int, shift: float) -> Tensor:
    """x_0 [B, ...], reached from x_1 in `steps` Euler steps; `velocity` is asked with x_t [B, ...] and t [B]."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    # By default the scheduler's last step would only lead from t = 0.001 to 0.
    scheduler.set_timesteps(sigmas=[1 - step / steps for step in range(steps)])
    x_t = x_1
    for timestep in scheduler.timesteps:
        t = (timestep / TIMESTEP_SCALE).to(x_1).expand(len(x_1))
        x_t = scheduler.step(velocity(x_t, t), timestep, x_t, return_dict=False)[0]
    return x_t
