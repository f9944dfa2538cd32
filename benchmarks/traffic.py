"""What one rank of benchmarks/scaling.py does: gradient reductions, metric syncs, steps over a slow link."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.data.loading.progress import Progress
from modules.distributed import (
    Group,
    RankEnv,
    register_compression_hook,
    resolve_backend,
    setup_distributed,
    wrap_ddp,
)
from modules.distributed.async_all_reduce import AsyncAllReduce
from modules.distributed.process_group import cleanup_distributed, process_group
from modules.training.actions import ACTIONS
from modules.training.state.requests import STOP_REQUESTS
from modules.training.step.metrics import StepMetrics, metric_names

LAYERS, RANK = 360, 4  # two tensors per layer: 720
STEP_S, NORM = 0.05, torch.tensor(1.0)
SENT = Path("/sys/class/net/cable/statistics/tx_bytes")  # of a host in tests/hosts.py


class Adapted(nn.Module):
    """A square layer with an adapter of rank 4."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.base = nn.Linear(size, size)
        self.down = nn.Parameter(torch.randn(RANK, size) / size)
        self.up = nn.Parameter(torch.randn(size, RANK) / size)

    def forward(self, x: Tensor) -> Tensor:
        """[B, size] to the same."""
        out: Tensor = x + 0.1 * torch.tanh(self.base(x) + x @ self.down.T @ self.up.T)
        return out


def network(size: int, *, adapters_only: bool) -> nn.Module:
    """360 layers, of which only the adapters are trained, or everything else."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Adapted(size) for _ in range(LAYERS)))
    for name, weight in model.named_parameters():
        weight.requires_grad_(("base" not in name) == adapters_only)
    return model


def adapters(rank_env: RankEnv, backend: str, sizes: Sequence[int], repeats: int, result: Path) -> None:
    """Seconds of one synchronisation of 720 adapter gradients: tensor by tensor, and in one buffer."""
    found = []
    with process_group(rank_env, resolve_backend(backend)[0], 60) as group:
        for size in sizes:
            weights = [
                nn.Parameter(torch.zeros(shape, device=group.device))
                for _ in range(LAYERS)
                for shape in ((RANK, size), (size, RANK))
            ]
            one_by_one = _seconds(partial(_one_by_one, weights), weights, group, repeats)
            views = _views(weights)
            one_bucket = _seconds(partial(_in_one_bucket, weights, views), weights, group, repeats)
            found.append({"size": size, "one by one": one_by_one, "one bucket": one_bucket})
    _write_result(rank_env, result, found)


def _one_by_one(weights: Sequence[nn.Parameter]) -> None:
    for weight in weights:
        assert weight.grad is not None
        weight.grad.div_(dist.get_world_size())
        dist.all_reduce(weight.grad)


def _views(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """Views into one buffer, one per gradient, in order."""
    buffer = torch.zeros(sum(weight.numel() for weight in weights), device=weights[0].device)
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def _in_one_bucket(weights: Sequence[nn.Parameter], views: Sequence[Tensor]) -> None:
    """What a bucket does with its gradients."""
    torch._foreach_copy_(list(views), [weight.grad for weight in weights if weight.grad is not None])
    buffer = views[0]._base
    assert buffer is not None
    dist.all_reduce(buffer.div_(dist.get_world_size()))
    for weight, view in zip(weights, views, strict=True):
        weight.grad = view


def _seconds(work: Callable[[], None], weights: Sequence[nn.Parameter], group: Group, repeats: int) -> float:
    """The median of several times, each from a common start with fresh gradients."""
    times = []
    for _ in range(repeats):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        _wait_for_device()
        dist.barrier(group=group.control)
        started = time.perf_counter()
        work()
        _wait_for_device()
        times.append(time.perf_counter() - started)
    return median(times)


def sync(rank_env: RankEnv, steps: int, result: Path) -> None:
    """What metric syncs cost in steps of 50 ms: time spent in them by the loop, and CPU time of all threads."""
    found: dict[str, object] = {}
    names = metric_names([*STOP_REQUESTS, *(action.name for action in ACTIONS)], rank_env.world_size)
    with process_group(rank_env, "gloo", 60) as group:
        all_reduce = AsyncAllReduce(names, group.control)
        for name in ("without", "with"):
            metrics, progress = StepMetrics(group.device, rank_env.rank, rank_env.world_size), Progress(0, steps, 1)
            syncs, cpu = [0.0], time.process_time()
            for _ in range(steps):
                time.sleep(STEP_S)  # a step that computes elsewhere, so that all CPU time is that of the syncs
                progress = progress.after(1)
                if name == "with":
                    metrics.end_step(progress, 0.1, NORM)
                if metrics.sync_is_due:
                    started = time.perf_counter()
                    metrics.finish_group(all_reduce.sync({"stop": 0.0, **metrics.take_group(flush=False)}))
                    syncs.append(time.perf_counter() - started)
            cpu_s = (time.process_time() - cpu) / steps
            found[name] = {"sync": median(syncs), "syncs": (len(syncs) - 1) / steps, "cpu": cpu_s}
        all_reduce.wait()
    _write_result(rank_env, result, found)


def steps(rank_env: RankEnv, backend: str, size: int, count: int, result: Path) -> None:
    """Seconds a step of full fine-tuning on this many processes, without reading any data."""
    with process_group(rank_env, resolve_backend(backend)[0], 60) as group:
        found = _train(group, TrainConfig(), network(size, adapters_only=False), size, batch=64, count=count)
    _write_result(rank_env, result, found)


def over_the_link() -> None:
    """One of two hosts: python traffic.py RESULT, with RANK, WORLD_SIZE and so on in the environment."""
    result = Path(sys.argv[1])
    torch.set_num_threads(1)
    group = setup_distributed(backend="gloo", timeout_s=120)
    found: list[dict[str, object]] = []
    for method, adapters_only, size, counts in (
        ("adapters of rank 4", True, 256, (5, 5, 5, 5)),
        ("full fine-tuning", False, 256, (2, 2, 2, 5)),
    ):
        for compression, count in zip(("none", "fp16", "bf16", "powersgd"), counts, strict=True):
            config = TrainConfig.model_validate({"gradient_compression": compression, "powersgd_start_step": 2})
            row = _train(group, config, network(size, adapters_only=adapters_only), size, batch=4, count=count)
            found.append({"method": method, "compression": compression, **row})
    cleanup_distributed()
    _write_result(group.rank_env, result, found)


def _train(group: Group, config: TrainConfig, model: nn.Module, size: int, batch: int, count: int) -> dict[str, float]:
    """Real steps of the wrapped model: seconds and bytes sent by this rank for each."""
    model = model.to(group.device)
    wrapped = wrap_ddp(model, config, group)
    compression = register_compression_hook(wrapped, config)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    x = torch.randn(batch, size, device=group.device)

    def step() -> None:
        wrapped(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    compression.reset(config.powersgd_start_step)
    step()
    _wait_for_device()
    dist.barrier(group=group.control)
    started, sent = time.perf_counter(), _sent()
    for _ in range(count):
        step()
    _wait_for_device()
    dist.barrier(group=group.control)
    return {
        "seconds": (time.perf_counter() - started) / count,
        "bytes": (_sent() - sent) / count,
        "gradients": sum(weight.numel() * weight.element_size() for weight in trained),
    }


def _sent() -> int:
    return int(SENT.read_text()) if SENT.exists() else 0


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _write_result(rank_env: RankEnv, result: Path, found: object) -> None:
    if rank_env.rank == 0:
        result.write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "cable")
    over_the_link()
