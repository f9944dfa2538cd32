"""What a prediction is compared with, how an error counts, and how much each noise level counts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Prediction = Literal["epsilon", "v_prediction"]
Error = Literal["mse", "huber", "smooth_l1"]
Weighting = Literal["none", "min_snr", "debiased"]

LARGEST_SNR = 1000.0  # of debiased weights: they would fall to nothing for pictures almost without noise


def errors(prediction: Tensor, target: Tensor, kind: Error, delta: float) -> Tensor:
    """The error of every number, like `prediction`; `huber` and `smooth_l1` grow linearly beyond `delta`.

    huber is (Huber 1964) half the square up to delta; smooth_l1 is huber / delta.
    """
    if kind == "huber":
        return functional.huber_loss(prediction, target, reduction="none", delta=delta)
    if kind == "smooth_l1":
        return functional.smooth_l1_loss(prediction, target, reduction="none", beta=delta)
    return functional.mse_loss(prediction, target, reduction="none")


def level_weights(snr: Tensor, prediction: Prediction, weighting: Weighting, gamma: float) -> Tensor:
    """What the loss at each signal-to-noise ratio [B] is multiplied by, [B].

    min_snr: min(snr, gamma) for an error of x_0 (Hang et al. 2023, arXiv:2303.09556), and an error of e is one of x_0
    times snr, an error of v one times snr + 1. debiased: 1 / sqrt(snr) for e (Yu et al. 2023, arXiv:2310.08442).
    """
    if weighting == "min_snr":
        limited = snr.clamp(max=gamma)
        # a last step without any picture has snr 0: all of its error of e counts as little as nothing says of x_0
        return limited / (snr + 1) if prediction == "v_prediction" else limited / snr.clamp_min(1e-20)
    if weighting == "debiased":
        limited = snr.clamp(max=LARGEST_SNR)
        return 1 / (limited + 1) if prediction == "v_prediction" else limited.clamp_min(1e-8).rsqrt()
    return torch.ones_like(snr)


def per_sample(error: Tensor, weights: Tensor | None) -> Tensor:
    """The mean error of each sample [B], the places weighted by `weights` [B, 1, h, w] where they are given."""
    weighted = error if weights is None else error * weights
    return weighted.mean(dim=tuple(range(1, error.ndim)))
