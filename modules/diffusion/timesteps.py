"""Sampling the timestep that a training sample is noised to."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

TimestepDistribution = Literal["uniform", "logit_normal"]


def sample_timestep(
    distribution: TimestepDistribution, num_timesteps: int, low: float, high: float, generator: torch.Generator
) -> Tensor:
    """An int64 timestep [] of a discrete schedule, between the fractions `low` and `high` of `num_timesteps`.

    logit_normal favours the middle (Esser et al. 2024, arXiv:2403.03206, section 3.1).
    """
    first = min(round(low * num_timesteps), num_timesteps - 1)
    end = max(round(high * num_timesteps), first + 1)
    if distribution == "uniform":
        return torch.randint(first, end, (), generator=generator)
    fraction = torch.sigmoid(torch.randn((), generator=generator))
    return (first + fraction * (end - first)).long().clamp(first, end - 1)
