# examples/library_trainer.py
"""A model of your own on all devices: which of three interleaved spirals does a point belong to?"""

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from tandem import TandemError, Trainer


def spirals(points: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (points,), generator=generator)
    radius = torch.rand(points, generator=generator)
    angle = 2 * math.pi * (arm / 3 + radius) + 0.1 * torch.randn(points, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm)


def loss(model, batch):
    x, arm = batch
    return cross_entropy(model(x), arm, reduction="none")  # one for each sample, or their mean


def metrics(model, batch):
    x, arm = batch
    return {"accuracy": (model(x).argmax(dim=1) == arm).float()}


if __name__ == "__main__":  # new processes import this file
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    data = {"validation_data": spirals(300, seed=1), "test_data": spirals(300, seed=2)}
    settings = {"epochs": 30, "global_batch_size": 64, "batch_size": 64, "learning_rate": 0.01, "ema": True}
    try:
        result = Trainer(model, spirals(1500, seed=0), loss=loss, metrics=metrics, **data, **settings).fit()
    except TandemError as error:
        raise SystemExit(str(error)) from None
    print(f"{result.reason}: test accuracy {result.metrics['test_accuracy']:.1%}, saved in {result.model_path}")
