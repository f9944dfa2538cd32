"""A model of one's own for the tests, as a user would write it: points of any number each, and the sign of their sum.

A batch has the points of all its samples one after the other, so it cannot be cut into smaller ones.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modules.config import Section, setting


class Options(Section):
    """What differs between the tests."""

    width: int = setting(6, title="Width", help="Hidden units.")
    dropout: float = setting(0.0, title="Dropout", help="Share that is dropped.")
    loss: str = setting("each", title="Loss", help="each or mean: one for each sample, or their mean.")
    held_out: int = setting(7, title="Held out", help="Samples for validation.")
    fault: str = setting("", title="Fault", help="Where something goes wrong, and what.")


class Points(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Item n has n % 3 + 1 points, which are moved a little by all three global random generators."""

    def __init__(self, count: int, seed: int, fault: str = "") -> None:
        generator = torch.Generator().manual_seed(seed)
        self.points = torch.randn(count, 3, 2, generator=generator)
        self.fault = fault

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.fault == "item" and index == 5:
            raise KeyError("no such row")
        points = self.points[index, : index % 3 + 1]
        label = (points.sum() > 0).float()
        if self.fault == "unseeded":
            points = points + np.random.default_rng().normal()
        moved = points + 0.1 * torch.randn(points.shape) + 0.1 * float(np.random.randn()) + 0.1 * random.random()
        return {"points": moved, "label": label}


class Net(nn.Module):
    """The mean of a hidden layer over the points of each sample."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.first = nn.Linear(2, options.width)
        self.drop = nn.Dropout(options.dropout)
        self.last = nn.Linear(options.width, 1)
        self.is_broken = options.fault == "forward"
        if options.fault == "unused":
            self.extra = nn.Linear(1, 1)

    def forward(self, points: Tensor, sample: Tensor, samples: int) -> Tensor:
        hidden = torch.tanh(self.first(points[:, :1] if self.is_broken else points))
        sums = hidden.new_zeros(samples, hidden.shape[1]).index_add(0, sample, hidden)
        out: Tensor = self.last(self.drop(sums)).squeeze(1)
        return out


FAULTS: dict[str, Callable[[Tensor], Any]] = {
    "column": lambda losses: losses[:, None],
    "pair": lambda losses: losses[:1].expand(2),
    "detached": lambda losses: losses.detach(),
    "nan": lambda losses: losses * math.nan,
    "number": lambda losses: losses.mean().item(),
    "integers": lambda losses: losses.long(),
    "nothing": lambda losses: None,
    "error": lambda losses: losses @ losses.new_ones(99),
}


def build_model(options: Options) -> nn.Module:
    if options.fault == "model":
        raise ValueError("no model")
    return Net(options) if options.fault != "no model" else {}  # type: ignore[return-value]


def build_data(options: Options) -> dict[str, Points]:
    if options.fault == "data":
        return {"trian": Points(3, 1)}
    count = {"empty": 0, "lengths": 41 + int(os.environ.get("RANK", "0"))}.get(options.fault, 41)
    train = Points(count, 1, options.fault)
    return {"train": train, "validation": Points(options.held_out, 2), "test": Points(5, 3)}


def collate(items: list[dict[str, Tensor]], options: Options | None = None) -> dict[str, object]:
    if options is not None and options.fault == "collate":
        items[len(items)]
    counts = torch.tensor([len(item["points"]) for item in items])
    sample = torch.repeat_interleave(torch.arange(len(items)), counts)
    points = torch.cat([item["points"] for item in items])
    return {"graph": (points, sample), "labels": [item["label"] for item in items], "count": len(items)}


def loss(model: nn.Module, batch: dict[str, Any], options: Options) -> Tensor:
    logits, labels = _logits(model, batch)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    if options.fault == "memory" and batch["count"] > 2:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    if options.fault in FAULTS:
        return FAULTS[options.fault](losses)
    return losses if options.loss == "each" else losses.mean()


def metrics(model: nn.Module, batch: dict[str, Any], options: Options | None = None) -> dict[str, Tensor]:
    logits, labels = _logits(model, batch)
    right = (logits > 0) == (labels > 0.5)
    if options is not None and options.fault == "metric":
        right = right[:, None]
    if options is not None and options.fault == "complex metric":
        return {"accuracy": right * 1j}
    return {"accuracy": right, "error": (logits.sigmoid() - labels).abs().mean()}


def _logits(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    points, sample = batch["graph"]
    return model(points, sample, batch["count"]), torch.stack(batch["labels"])
