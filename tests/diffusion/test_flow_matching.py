"""The straight line from noise to image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from modules.diffusion.flow_matching import integrate, sample_t


@pytest.mark.parametrize("steps", [1, 3, 20])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_euler_steps_follow_a_straight_line_exactly(steps: int, shift: float) -> None:
    x_0, x_1 = torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, 0.5]])
    asked: list[float] = []

    def velocity(x_t: Tensor, t: Tensor) -> Tensor:
        asked.append(t.item())
        torch.testing.assert_close(x_t, (1 - t) * x_0 + t * x_1)
        return x_1 - x_0

    torch.testing.assert_close(integrate(velocity, x_1, steps, shift), x_0)
    assert len(asked) == steps
    assert asked[0] == pytest.approx(1.0)


def test_shift_multiplies_the_odds() -> None:
    plain = sample_t("uniform", 1.0, torch.Generator().manual_seed(0)).item()
    shifted = sample_t("uniform", 5.0, torch.Generator().manual_seed(0)).item()
    assert shifted / (1 - shifted) == pytest.approx(5 * plain / (1 - plain), rel=1e-4)
