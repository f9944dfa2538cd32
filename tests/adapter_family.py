"""The tiny family with everything frozen but many small low-rank adapters, some of which may be left out."""

from __future__ import annotations

import os
from typing import ClassVar

import torch
from torch import Tensor, nn

from modules.config import setting
from tests.tiny_family import TinyFamily, TinyOptions


class AdapterOptions(TinyOptions):
    """How many adapters, and when the last two take no part."""

    adapters: int = setting(12, title="Adapters", help="Two trained tensors each.")
    idle: str = setting("never", title="Idle", help='"never", "always", "rank N", "from N" or "until N" (forwards).')
    differs: bool = setting(False, title="Differs", help="Whether every rank loads other weights.")
    scalar: bool = setting(False, title="Scalar", help="Whether a single number is trained, too.")


class Adapter(nn.Module):
    """A rank-4 change of the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(4, channels) / channels**0.5)
        self.up = nn.Parameter(torch.randn(channels, 4) * 0.05)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to the same."""
        return x + torch.einsum("bchw,rc,dr->bdhw", x, self.down, self.up)


class AdapterNet(nn.Module):
    """Two frozen convolutions with adapters in between."""

    def __init__(self, options: AdapterOptions) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, options.width, 3, padding=1)
        self.second = nn.Conv2d(options.width, 3, 3, padding=1)
        self.requires_grad_(False)
        self.adapters = nn.ModuleList(Adapter(options.width) for _ in range(options.adapters))
        self.scale = nn.Parameter(torch.ones(())) if options.scalar else 1.0
        self.idle, self.calls = options.idle, 0

    def forward(self, x: Tensor) -> Tensor:
        """[B, 4, H, W] to [B, 3, H, W]."""
        self.calls += 1
        hidden = torch.tanh(self.first(x))
        for adapter in self.adapters[:-2] if self.last_are_idle() else self.adapters:
            hidden = adapter(hidden)
        out: Tensor = self.second(hidden) * self.scale
        return out

    def last_are_idle(self) -> bool:
        """Whether the last two adapters are skipped in this forward."""
        word, _, number = self.idle.partition(" ")
        if word == "rank":
            return int(os.environ.get("RANK", "0")) == int(number)
        if word in ("from", "until"):
            return (self.calls >= int(number)) == (word == "from")
        return word == "always"


class AdapterFamily(TinyFamily):
    """Predicts the image behind the noise."""

    Options: ClassVar[type[AdapterOptions]] = AdapterOptions

    def __init__(self, options: AdapterOptions) -> None:
        super().__init__(options)
        torch.manual_seed(torch.initial_seed() + (int(os.environ.get("RANK", "0")) if options.differs else 0))
        self.model = AdapterNet(options)
