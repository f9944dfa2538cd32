"""A model, data and losses for the Trainer, as a program's own module has them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SAMPLES = 37


def make_model() -> nn.Module:
    """A network with a frozen layer, always with the same weights."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    model[0].requires_grad_(False)
    return model


@dataclass
class Sums:
    """Points and the sum of their coordinates."""

    size: int = SAMPLES

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(index))
        return x, x.sum(dim=0, keepdim=True)


def interrupt() -> None:
    """As Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


@dataclass
class Interrupting(Sums):
    """Calls `act` when one sample is read for the third time: in the third epoch.

    It is slow, so that few steps pass until the run looks for requests, which it does about every 0.2 s.
    """

    act: Callable[[], object] = interrupt
    reads: int = 0

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == SAMPLES // 2:
            self.reads += 1
            if self.reads == 3:
                self.act()
        time.sleep(0.002)
        return super().__getitem__(index)


@dataclass
class Killing(Sums):
    """Kills rank 1 once `file` exists, as a machine out of memory does."""

    file: Path = Path()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if os.environ.get("RANK") == "1" and self.file.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def squared_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss for each sample."""
    x, y = batch
    return (model(x) - y).square().mean(dim=1)


def absolute_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """A metric."""
    x, y = batch
    return {"absolute_error": (model(x) - y).abs().mean(dim=1)}


def failing_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A mistake of the program."""
    raise ValueError("my own mistake")


def adagrad(parameters: Any, learning_rate: float) -> torch.optim.Optimizer:
    """An optimizer of the program's own."""
    return torch.optim.Adagrad(parameters, learning_rate, lr_decay=0.01)


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.StepLR:
    """A scheduler of the program's own."""
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
