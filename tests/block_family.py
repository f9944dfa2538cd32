"""A family with blocks for the tests of fully_sharded, named by its path: no weight divides evenly by the ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modules.config import TrainConfig, setting
from tests.tiny_family import TinyFamily, TinyOptions


class BlockOptions(TinyOptions):
    """What can be difficult about dividing a model."""

    frozen: bool = setting(False, title="Frozen", help="The first layers do not learn, as beside adapters.")
    tied: bool = setting(False, title="Tied", help="Two blocks share a weight.")
    scalar: bool = setting(False, title="Scalar", help="A weight is a single number.")
    unlike: bool = setting(False, title="Unlike", help="Every rank draws other weights.")
    unused: bool = setting(False, title="Unused", help="A weight takes no part.")


class Block(nn.Module):
    """A residual convolution."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        self.inside = nn.Conv2d(options.width, options.width, 3, padding=1)
        self.norm = nn.BatchNorm2d(options.width) if options.batch_norm else nn.GroupNorm(1, options.width)
        self.drop = nn.Dropout(options.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, H, W] to the same."""
        out: Tensor = x + self.drop(torch.tanh(self.inside(self.norm(x))))
        return out


class BlockNet(nn.Module):
    """Three blocks between two convolutions."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, options.width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(options) for _ in range(3))
        self.last = nn.Conv2d(options.width, 3, 3, padding=1)
        self.gain = nn.Parameter(torch.ones(() if options.scalar else (1,)))
        if options.unused:
            self.idle = nn.Linear(3, 3)
        if options.tied:
            self.get_submodule("blocks.2.inside").weight = self.get_submodule("blocks.0.inside").weight
        if options.frozen:
            self.first.requires_grad_(False)
            self.get_submodule("blocks.0").requires_grad_(False)
            self.get_submodule("blocks.1.norm").requires_grad_(False)
        self.recomputed = False

    def enable_gradient_checkpointing(self) -> None:
        """The switch that the trainer looks for."""
        self.recomputed = True

    def forward(self, x: Tensor) -> Tensor:
        """[B, 4, H, W] to [B, 3, H, W]."""
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputed else block(x)
        out: Tensor = self.last(x) * self.gain
        return out


class BlockFamily(TinyFamily):
    """The tiny family around another model."""

    Options: ClassVar[type[BlockOptions]] = BlockOptions

    def __init__(self, options: BlockOptions) -> None:
        super().__init__(options)
        self.model: nn.Module = BlockNet(options)

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """Weights from the seed."""
        options = BlockOptions.model_validate(dict(config.family_options))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed + options.unlike * int(os.environ.get("RANK", "0")))
            return cls(options)

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """One file, in which tied weights come twice."""
        super().export({name: tensor.clone() for name, tensor in state.items()}, folder)

    def blocks(self) -> Sequence[nn.Module]:
        """The three in the middle."""
        return list(self.model.get_submodule("blocks").children())
