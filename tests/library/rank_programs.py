"""What the ranks of test_library do; rank 0's results are written for the test."""

from __future__ import annotations

import json
from collections.abc import Sized
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from modules.library import (
    DistributedBatchSampler,
    DistributedSampler,
    benchmark,
    is_main_process,
    reduce_mean,
    save_on_rank0,
    throughput,
    training_info,
)

SAMPLES = 23


def make_data() -> TensorDataset:
    """23 samples, which no number of ranks but 1 and 23 divides."""
    x = torch.randn(SAMPLES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.square().sum(dim=1, keepdim=True))


def make_model() -> nn.Module:
    """Equal on every rank."""
    torch.manual_seed(2)
    return nn.Linear(4, 1, dtype=torch.float64)


def train(model: nn.Module, batch_size: int, epochs: int = 3) -> None:
    """A user's own loop; each step is the mean over all samples of the step on all ranks."""
    data = make_data()
    sampler = DistributedBatchSampler(data, batch_size, seed=5)
    loader = DataLoader(data, batch_sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for (x, y), scale in zip(loader, sampler.loss_scales(), strict=True):
            optimizer.zero_grad()
            (nn.functional.mse_loss(model(x), y) * scale).backward()
            optimizer.step()


def validate(model: nn.Module) -> dict[str, object]:
    """The mean over all samples, whatever the number of ranks."""
    data = make_data()
    sampler = DistributedSampler(data, shuffle=False)
    x, y = data[list(sampler)]
    with torch.no_grad():
        errors = (model(x) - y).square()
    return reduce_mean({"loss": errors.mean().item(), "by": {"column": (errors * x).mean(dim=0)}}, len(cast(Sized, x)))


def all_pieces(rank: int, world_size: int, folder: Path) -> None:
    """Everything of the library that ranks do together."""
    model = DistributedDataParallel(make_model())
    train(model, batch_size=4)
    results = validate(model)
    nothing = reduce_mean(float("nan") if rank else 2.0, weight=0 if rank else 3)
    try:
        reduce_mean({"loss": 1.0} if rank else {"accuracy": 1.0})
        refusal = ""
    except ValueError as error:
        refusal = str(error)
    save_on_rank0(model, folder / "model.safetensors")
    info = training_info()
    outcome = {
        "loss": results["loss"],
        "column": cast(dict[str, torch.Tensor], results["by"])["column"].tolist(),
        "nothing": nothing,
        "refusal": refusal,
        "throughput": throughput(samples=10 * (rank + 1), seconds=1.0 + rank),
        "info": [info.rank, info.local_rank, info.world_size, info.backend, info.device, info.precision],
        "benchmark": benchmark(model, make_data()[:2][0], lambda m, x: m(x).square().mean(), steps=1).steps,
        "main": is_main_process(),
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(outcome))
