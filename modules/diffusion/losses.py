"""Loss functions, and loss weights by signal-to-noise ratio."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Prediction = Literal["epsilon", "v_prediction"]
LossType = Literal["mse", "huber", "smooth_l1"]
SnrWeighting = Literal["none", "min_snr", "debiased"]

MAX_DEBIASED_SNR = 1000.0  # debiased weights would vanish for images almost without noise


def elementwise_loss(prediction: Tensor, target: Tensor, loss: LossType, delta: float) -> Tensor:
    """The loss of each element, shaped like `prediction`; `huber` and `smooth_l1` are linear beyond `delta`.

    huber (Huber 1964) is half the squared error up to delta; smooth_l1 is huber / delta.
    """
    if loss == "huber":
        return functional.huber_loss(prediction, target, reduction="none", delta=delta)
    if loss == "smooth_l1":
        return functional.smooth_l1_loss(prediction, target, reduction="none", beta=delta)
    return functional.mse_loss(prediction, target, reduction="none")


def snr_weights(snr: Tensor, prediction: Prediction, weighting: SnrWeighting, gamma: float) -> Tensor:
    """Loss weights [B] for signal-to-noise ratios [B].

    min_snr: min(snr, gamma) for the error of x_0 (Hang et al. 2023, arXiv:2303.09556); the error of epsilon is that of
    x_0 times snr, the error of v that of x_0 times snr + 1. debiased: 1 / sqrt(snr) for epsilon (Yu et al. 2023,
    arXiv:2310.08442).
    """
    if weighting == "min_snr":
        clipped = snr.clamp(max=gamma)
        # with zero terminal SNR the last step has snr 0, where the error of epsilon says nothing about x_0
        return clipped / (snr + 1) if prediction == "v_prediction" else clipped / snr.clamp_min(1e-20)
    if weighting == "debiased":
        clipped = snr.clamp(max=MAX_DEBIASED_SNR)
        return 1 / (clipped + 1) if prediction == "v_prediction" else clipped.clamp_min(1e-8).rsqrt()
    return torch.ones_like(snr)


def mean_per_sample(loss: Tensor, weights: Tensor | None) -> Tensor:
    """Mean loss of each sample [B] from [B, C, ...], pixels weighted by `weights` [B, 1, ...] if given."""
    weighted = loss if weights is None else loss * weights
    return weighted.mean(dim=tuple(range(1, loss.ndim)))
