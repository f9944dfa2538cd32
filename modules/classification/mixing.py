"""Mixup and CutMix: two samples become one, in the same way for all samples of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ALPHA = 2.0  # beyond it, sampling by rejection takes too long


@dataclass(frozen=True)
class Mixing:
    """Mixes each sample of a step with a partner; with both methods, each step takes one of them at random."""

    mixup_alpha: float
    cutmix_alpha: float

    def __call__(
        self, sample: dict[str, Tensor], partner: dict[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """pixels uint8 [3, H, W] of both, their `label` and `other_label`, and the `share` of the first, fp32 [].

        `generator` is seeded by the step: every rank draws the same share and the same rectangle.
        """
        use_cutmix = self.cutmix_alpha > 0
        if use_cutmix and self.mixup_alpha > 0:
            use_cutmix = float(torch.rand((), generator=generator)) < 0.5
        share = sample_beta(self.cutmix_alpha if use_cutmix else self.mixup_alpha, generator)
        pixels, other = sample["pixels"], partner["pixels"]
        if use_cutmix:
            pixels, share = cut_and_paste(pixels, other, share, generator)
        else:
            mixed = share * pixels.to(torch.float32) + (1 - share) * other.to(torch.float32)
            pixels = mixed.round().to(torch.uint8)
        return {**sample, "pixels": pixels, "other_label": partner["label"], "share": torch.tensor(share)}


def cut_and_paste(pixels: Tensor, other: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, float]:
    """`pixels` with a rectangle of `other`, 1 - `share` of its area but for what the border cuts off, and the share
    that is left (Yun et al. 2019, arXiv:1905.04899, algorithm A1)."""
    _, height, width = pixels.shape
    side = math.sqrt(1 - share)
    down, across = torch.rand(2, generator=generator).tolist()
    top, bottom = _clipped(down * height, side * height, height)
    left, right = _clipped(across * width, side * width, width)
    mixed = pixels.clone()
    mixed[:, top:bottom, left:right] = other[:, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def sample_beta(alpha: float, generator: torch.Generator) -> float:
    """A number from Beta(alpha, alpha), by Jöhnk's rejection (1964), in logarithms because alpha may be small."""
    while True:
        log_x, log_y = (torch.rand(2, generator=generator, dtype=torch.float64).log() / alpha).tolist()
        largest = max(log_x, log_y)
        x, y = math.exp(log_x - largest), math.exp(log_y - largest)
        if largest + math.log(x + y) <= 0:
            return x / (x + y)


def _clipped(centre: float, length: float, limit: int) -> tuple[int, int]:
    return max(0, round(centre - length / 2)), min(limit, round(centre + length / 2))
