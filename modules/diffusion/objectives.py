"""What a denoiser learns: to predict epsilon or v of DDPM, or the velocity of rectified flow, from a noised image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from modules.diffusion import losses
from modules.diffusion.flow_matching import sigma_weights
from modules.diffusion.flow_options import SigmaWeighting
from modules.diffusion.losses import LossType, Prediction, SnrWeighting
from modules.diffusion.noise import add_noise, compute_snr, velocity


class Objective(Protocol):
    """Between the image x_0 and noise, both [B, ...], at `level` [B]: what is meant by a level is the objective's."""

    def noised(self, x_0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """x_t [B, ...]."""
        ...

    def target(self, x_0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """What is to be predicted, [B, ...]."""
        ...

    def weights(self, level: Tensor) -> Tensor:
        """Of the losses of samples at these levels, [B]."""
        ...


@dataclass(frozen=True)
class Ddpm:
    """Epsilon or v (see `noise`); a level is alpha_bar, 1 for the image and 0 for noise."""

    prediction: Prediction
    weighting: SnrWeighting
    min_snr_gamma: float

    def noised(self, x_0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        return add_noise(x_0, noise, level)

    def target(self, x_0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        return noise if self.prediction == "epsilon" else velocity(x_0, noise, level)

    def weights(self, level: Tensor) -> Tensor:
        """By signal-to-noise ratio."""
        return losses.snr_weights(compute_snr(level), self.prediction, self.weighting, self.min_snr_gamma)


@dataclass(frozen=True)
class FlowMatching:
    """The velocity from image to noise (see `flow_matching`); a level is sigma, 0 for the image and 1 for noise.

    Levels are [B], or [B, f] of clips [B, C, f, h, w] whose frames have their own.
    """

    weighting: SigmaWeighting

    def noised(self, x_0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        sigma = level.view(*level.shape[:1], 1, *level.shape[1:], *[1] * (x_0.ndim - 1 - level.ndim))
        return (1 - sigma) * x_0 + sigma * noise

    def target(self, x_0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        return noise - x_0

    def weights(self, level: Tensor) -> Tensor:
        return sigma_weights(level if level.ndim == 1 else level.amax(1), self.weighting)


@dataclass(frozen=True)
class DenoisingLoss:
    """The loss of a prediction, of one form for all objectives."""

    objective: Objective
    form: LossType
    huber_delta: float

    def of(
        self,
        predict: Callable[[Tensor], Tensor],
        x_0: Tensor,
        noise: Tensor,
        level: Tensor,
        pixel_weights: Tensor | None,
    ) -> Tensor:
        """[B]: of what `predict` makes of x_t [B, C, h, w] or [B, C, f, h, w], with `pixel_weights` of one channel if
        given."""
        prediction = predict(self.objective.noised(x_0, noise, level)).to(x_0.dtype)
        target = self.objective.target(x_0, noise, level)
        loss = losses.elementwise_loss(prediction, target, self.form, self.huber_delta)
        return losses.mean_per_sample(loss, pixel_weights) * self.objective.weights(level)
