"""Which of the T noise levels of a schedule a sample is trained at."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Distribution = Literal["uniform", "logit_normal"]


def draw_timestep(
    distribution: Distribution, count: int, lowest: float, highest: float, generator: torch.Generator
) -> Tensor:
    """One whole number [] from 0 to count - 1, between the shares `lowest` and `highest` of the schedule.

    logit_normal prefers the middle (Esser et al. 2024, arXiv:2403.03206).
    """
    first = min(round(lowest * count), count - 1)
    end = max(round(highest * count), first + 1)
    if distribution == "uniform":
        return torch.randint(first, end, (), generator=generator)
    share = torch.sigmoid(torch.randn((), generator=generator))
    return (first + share * (end - first)).long().clamp(first, end - 1)
