"""Programs for two ranks of test_gradient_sync; rank 0 writes the results to FOLDER/found.json."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from modules.config import TrainConfig
from modules.distributed import (
    BufferSync,
    Group,
    RankEnv,
    complete_gradient_sync,
    register_compression_hook,
    wrap_ddp,
)
from modules.distributed.ddp import same_on_all_ranks
from modules.distributed.process_group import process_group
from tests.adapter_family import AdapterNet, AdapterOptions

ADAPTERS = 360  # two tensors each
INTERRUPTED: dict[str, dict[str, object]] = {
    "plain": {},
    "no views": {"gradient_as_bucket_view": False},
    "bf16": {"gradient_compression": "bf16"},
    "static graph": {"static_graph": True},
}


def run_all(rank_env: RankEnv, folder: Path) -> None:
    """Single gradient syncs, examined closely."""
    with process_group(rank_env, "gloo", 60) as group:
        found = {**_wrapped_adapters(group), **_same_weights(group), **_compressed(group)}
        found["powersgd finite"] = _non_finite(group)
        found |= {f"interrupted, {name}": _interrupted(group, **settings) for name, settings in INTERRUPTED.items()}
        found["buffers"] = _synced_buffers(group)
    if rank_env.rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


def _wrapped_adapters(group: Group) -> dict[str, object]:
    """The number of buckets, once DDP has rebuilt them."""
    found: dict[str, object] = {}
    for name, trained, compression in (
        ("adapters", "adapters", "none"),
        ("everything", "", "none"),
        ("everything in low ranks", "", "powersgd"),
    ):
        config = TrainConfig.model_validate({"bucket_cap_mb": 1, "gradient_compression": compression})
        torch.manual_seed(group.rank)
        model = AdapterNet(AdapterOptions(width=256, adapters=ADAPTERS))
        for weight_name, weight in model.named_parameters():
            weight.requires_grad_(weight_name.startswith(trained))
        wrapped = wrap_ddp(model, config, group)
        buckets: list[int] = []
        wrapped.register_comm_hook(buckets, _count)
        for _ in range(2):
            buckets.clear()
            wrapped(torch.randn(1, 4, 2, 2)).sum().backward()
        found[f"{name} buckets"] = len(buckets)
        found[f"{name} tensors"] = sum(weight.requires_grad for weight in model.parameters())
        found[f"{name} same"] = same_on_all_ranks([*model.parameters(), *model.buffers()], group)
    return found


def _count(buckets, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with classes, not strings
    buckets.append(bucket.index())
    return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None: all ranks


def _same_weights(group: Group) -> dict[str, object]:
    """What counts as a difference between ranks."""

    def compared(corrupt: object) -> bool:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model.register_buffer("turns", torch.zeros(4, dtype=torch.complex64))
        model.register_buffer("nothing", torch.zeros(0))
        if group.rank == 1 and callable(corrupt):
            corrupt(model)
        return same_on_all_ranks([*model.parameters(), *model.buffers()], group)

    with torch.no_grad():
        return {
            "same: equal": compared(None),
            "same: a bit": compared(lambda m: m[0].weight.view(torch.int32)[2, 1].bitwise_xor_(1)),
            "same: ones and twos": compared(lambda m: m[1].weight.mul_(2)),
            "same: a buffer": compared(lambda m: m[1].num_batches_tracked.add_(1)),
            "same: shape": compared(lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.view(2, 8)))),
        }


def _compressed(group: Group) -> dict[str, object]:
    """How far the mean of two gradients is from the exact one, and whether both ranks get the same."""
    found: dict[str, object] = {}
    for compression in ("none", "fp16", "bf16", "powersgd"):
        config = TrainConfig(gradient_compression=compression, powersgd_start_step=2, powersgd_rank=1)
        model = nn.Linear(32, 32, bias=False)
        wrapped = wrap_ddp(model, config, group)
        register_compression_hook(wrapped, config).reset(5)
        gradient = _gradient(wrapped, group.rank)
        exact = (_own_gradient(0) + _own_gradient(1)) / 2
        other = gradient.clone()
        dist.broadcast(other, 0)
        found[f"{compression} differs by"] = float((gradient - exact).norm() / exact.norm())
        found[f"{compression} same"] = torch.equal(gradient, other)
        found[f"{compression} rank"] = int(torch.linalg.matrix_rank(gradient, rtol=1e-4))
    return found


def _non_finite(group: Group) -> list[bool]:
    """Whether PowerSGD's gradients are finite before, in and after a step in which one rank had a NaN."""
    config = TrainConfig(gradient_compression="powersgd", powersgd_start_step=2)
    wrapped = wrap_ddp(nn.Linear(32, 32, bias=False), config, group)
    register_compression_hook(wrapped, config).reset(5)
    corrupted = float("nan") if group.rank == 1 else 1.0
    return [bool(_gradient(wrapped, group.rank, factor).isfinite().all()) for factor in (1.0, corrupted, 1.0)]


def _own_gradient(rank: int) -> torch.Tensor:
    return torch.randn(32, 32, generator=torch.Generator().manual_seed(rank))


def _gradient(wrapped: DistributedDataParallel, rank: int, factor: float = 1.0) -> torch.Tensor:
    """The synced gradient of a loss whose local gradient is a given matrix."""
    wrapped.zero_grad()
    (wrapped(torch.eye(32)) * _own_gradient(rank).T * factor).sum().backward()
    gradient = wrapped.module.weight.grad
    assert gradient is not None
    return gradient.detach().clone()


class _Interrupted(nn.Module):
    """Layers whose gradients fill several buckets; the backward fails behind one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(300, 300) for _ in range(6))  # 0.34 MiB each
        self.unused = nn.Linear(3, 3)
        self.fails_behind = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number == self.fails_behind:
                x.register_hook(_run_out_of_memory)
        return x


def _run_out_of_memory(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def _interrupted(group: Group, **settings: object) -> list[list[bool]]:
    """For steps in which the backward of rank 1 fails nowhere, or behind a layer: whether the gradients are finite, and
    whether they are equal on both ranks."""
    config = TrainConfig.model_validate({"bucket_cap_mb": 1, **settings})
    torch.manual_seed(3)
    model = _Interrupted()
    if not config.static_graph:
        del model.unused
    wrapped = wrap_ddp(model, config, group)
    register_compression_hook(wrapped, config)
    x = torch.randn(2, 300, generator=torch.Generator().manual_seed(group.rank))
    results = []
    for fails_behind in (-1, -1, 5, -1, 2, 0, -1):
        model.fails_behind = fails_behind if group.rank == 1 else -1
        try:
            wrapped(x).square().mean().backward()
        except torch.OutOfMemoryError:
            assert complete_gradient_sync(wrapped)
        gradients = [weight.grad for weight in model.layers.parameters() if weight.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        norms = [torch.empty_like(norm) for _ in range(2)]
        dist.all_gather(norms, norm)
        used = any(weight.grad is not None for weight in getattr(model, "unused", nn.Identity()).parameters())
        same = torch.equal(norms[0], norms[1]) or all(map(torch.isnan, norms))
        results.append([bool(norm.isfinite()), same and not used])
        for gradient in gradients:
            gradient.zero_()
    return results


def _synced_buffers(group: Group) -> dict[str, list[float]]:
    """Buffers after a step in which each rank changed its own: [0] of each."""
    model = nn.Module()
    for name, value in {"mean": 1.0, "constant": 1.1, "counter": 7, "flag": False}.items():
        model.register_buffer(name, torch.tensor([value]))
    model.register_buffer("table", torch.tensor([1j]))
    buffers = BufferSync(model, group)
    buffers.start()
    for step in range(2):
        model.mean += group.rank + 1  # type: ignore[assignment, operator]
        model.counter += group.rank + 1  # type: ignore[assignment, operator]
        model.flag = torch.tensor([group.rank == 0])
        buffers.sync() if step else buffers.keep_changed()
    return {name: [float(buffer)] for name, buffer in model.named_buffers() if name != "table"}
