"""The residual networks for small images of He et al. 2015 (arXiv:1512.03385), section 4.2: 6n + 2 layers."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["batch", "group"]

_MAX_GROUPS = 8


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around an identity, which is subsampled and padded with zeros if the shape changes
    (option A of the paper, without weights of its own)."""

    def __init__(self, channels_in: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = make_norm(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = make_norm(norm, channels)
        self.stride, self.added_channels = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels_in, H, W] to [B, channels, H / stride, W / stride]."""
        out = functional.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        identity = x[:, :, :: self.stride, :: self.stride]
        if self.added_channels:
            identity = functional.pad(identity, (0, 0, 0, 0, 0, self.added_channels))
        return functional.relu(out + identity)


class CifarResNet(nn.Module):
    """`depth` layers: a convolution, three stages of `width`, 2 and 4 times `width` channels, and a linear layer."""

    def __init__(self, depth: int, classes: int, *, width: int = 16, norm: Norm = "batch") -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = make_norm(norm, width)
        blocks, channels_in = (depth - 2) // 6, width
        stages = []
        for stage in range(3):
            channels = width * 2**stage
            first = ResidualBlock(channels_in, channels, 2 if stage else 1, norm)
            rest = [ResidualBlock(channels, channels, 1, norm) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *rest))
            channels_in = channels
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels_in, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes] of images [B, 3, H, W]."""
        features: Tensor = self.stages(functional.relu(self.norm(self.conv(x))))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


def make_norm(norm: Norm, channels: int) -> nn.Module:
    """BatchNorm, or GroupNorm (Wu & He 2018, arXiv:1803.08494), which looks at each sample alone."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(_MAX_GROUPS, channels), channels)
