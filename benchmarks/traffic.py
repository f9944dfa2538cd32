"""What one rank of benchmarks/scaling.py does: exchanges of gradients, agreements, steps over a slow link."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modules.config import TrainConfig
from modules.data.progress import Progress
from modules.distributed import (
    Agreement,
    Group,
    Place,
    compress_gradients,
    process_group,
    resolve_backend,
    setup_distributed,
    wrap_data_parallel,
)
from modules.distributed.process_group import cleanup_distributed
from modules.training.ledger import Ledger
from modules.training.surroundings import agreement_names

LAYERS, RANK = 360, 4  # two tensors a layer: 720
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


def adapters(place: Place, backend: str, sizes: Sequence[int], repeats: int, result: Path) -> None:
    """Seconds of one synchronisation of 720 adapter gradients: tensor by tensor, and in one buffer."""
    found = []
    with process_group(place, resolve_backend(backend)[0], 60) as group:
        for size in sizes:
            weights = [
                nn.Parameter(torch.zeros(shape, device=group.device))
                for _ in range(LAYERS)
                for shape in ((RANK, size), (size, RANK))
            ]
            one_by_one = _seconds(lambda w=weights: _one_by_one(w), weights, group, repeats)
            views = _views(weights)
            together = _seconds(lambda w=weights, v=views: _together(w, v), weights, group, repeats)
            found.append({"size": size, "one by one": one_by_one, "together": together})
    _tell(place, result, found)


def _one_by_one(weights: Sequence[nn.Parameter]) -> None:
    for weight in weights:
        assert weight.grad is not None
        weight.grad.div_(dist.get_world_size())
        dist.all_reduce(weight.grad)


def _views(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """Parts of one buffer, one for each gradient; they lie in it as they come."""
    buffer = torch.zeros(sum(weight.numel() for weight in weights), device=weights[0].device)
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def _together(weights: Sequence[nn.Parameter], views: Sequence[Tensor]) -> None:
    """What a bucket does with its gradients."""
    torch._foreach_copy_(views, [weight.grad for weight in weights])
    buffer = views[0]._base
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
        began = time.perf_counter()
        work()
        _wait_for_device()
        times.append(time.perf_counter() - began)
    return median(times)


def agreement(place: Place, steps: int, result: Path) -> None:
    """What agreeing costs in steps of 50 ms: the time that the loop spends in it, and the CPU time of all threads."""
    found: dict[str, object] = {}
    with process_group(place, "gloo", 60) as group:
        agreed = Agreement(agreement_names(place.world_size), group.control)
        for name in ("without", "with"):
            ledger, progress = Ledger(group.device, place.rank, place.world_size), Progress(0, steps, 1)
            talks, cpu = [0.0], time.process_time()
            for _ in range(steps):
                time.sleep(STEP_S)  # a step that computes elsewhere, so that all CPU time is the agreement's
                progress = progress.after(1)
                if name == "with":
                    ledger.close(progress, 0.1, NORM)
                if ledger.due:
                    began = time.perf_counter()
                    ledger.exchange(agreed.exchange, {"stop": 0.0})
                    talks.append(time.perf_counter() - began)
            cpu_s = (time.process_time() - cpu) / steps
            found[name] = {"talk": median(talks), "talks": (len(talks) - 1) / steps, "cpu": cpu_s}
        agreed.settle()
    _tell(place, result, found)


def steps(place: Place, backend: str, size: int, count: int, result: Path) -> None:
    """Seconds a step of full fine-tuning on this many processes, without reading any data."""
    with process_group(place, resolve_backend(backend)[0], 60) as group:
        found = _train(group, TrainConfig(), network(size, adapters_only=False), batch=64, count=count)
    _tell(place, result, found)


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
            config = TrainConfig(gradient_compression=compression, powersgd_start_step=2)
            row = _train(group, config, network(size, adapters_only=adapters_only), batch=4, count=count)
            found.append({"method": method, "compression": compression, **row})
    cleanup_distributed()
    _tell(group.place, result, found)


def _train(group: Group, config: TrainConfig, model: nn.Module, batch: int, count: int) -> dict[str, float]:
    """Real steps of the wrapped model: seconds and bytes sent by this rank for each."""
    model = model.to(group.device)
    wrapped = wrap_data_parallel(model, config, group)
    compression = compress_gradients(wrapped, config)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    x = torch.randn(batch, model[0].base.in_features, device=group.device)

    def step() -> None:
        wrapped(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    compression.begin_at(config.powersgd_start_step)
    step()
    _wait_for_device()
    dist.barrier(group=group.control)
    began, sent = time.perf_counter(), _sent()
    for _ in range(count):
        step()
    _wait_for_device()
    dist.barrier(group=group.control)
    return {
        "seconds": (time.perf_counter() - began) / count,
        "bytes": (_sent() - sent) / count,
        "gradients": sum(weight.numel() * weight.element_size() for weight in trained),
    }


def _sent() -> int:
    return int(SENT.read_text()) if SENT.exists() else 0


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _tell(place: Place, result: Path, found: object) -> None:
    if place.rank == 0:
        result.write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "cable")
    over_the_link()
