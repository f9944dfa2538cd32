"""Points of scripts/gpu_check_list.py that compute on the device in their own process, without a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modules.config import TrainConfig
from modules.config.sections.optimizers import OPTIMIZERS
from modules.diffusion.quantized import QuantizedLinear, keep_in_host_memory_
from modules.distributed.bucket_views import move_gradients_into_buckets
from modules.distributed.host_copy import HostCopy
from modules.machine import find_free_port, visible_gpus
from modules.training.device.precision import Precision, can_use_tf32
from modules.training.memory.block_offload import BlockOffload, offloaded_blocks
from modules.training.optim.optimizers import build_optimizer
from scripts.gpu_check_list import MIB, ONLY_ON_GPU, require


def tf32(device: torch.device, place: Path) -> str:
    """TF32's switches, and how long the autoencoder of Stable Diffusion takes to encode with and without it."""
    from diffusers import AutoencoderKL

    widths, side = ((128, 256, 512, 512), 512) if device.type == "cuda" else ((32, 32), 64)
    blocks = len(widths)
    vae: Any = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=widths,
        latent_channels=4,
    )
    vae.to(device)
    images = torch.rand(4, 3, side, side, device=device)
    found = {}
    for allowed in (False, can_use_tf32("bf16", device)):
        Precision("bf16", device, tf32=allowed)
        if device.type == "cuda":
            switches = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            require(switches == (allowed, allowed), f"the switches are {switches}, not {allowed}")
        with torch.no_grad():
            found[allowed] = seconds_of(lambda: vae.encode(images), device)
    if True not in found:
        return f"4 images of {side} px encoded in {1000 * found[False]:.0f} ms; this device has no TF32"
    return f"4 images of {side} px encoded in {1000 * found[True]:.0f} ms, without TF32 {1000 * found[False]:.0f} ms"


def metric_copies(device: torch.device, place: Path) -> str:
    """Keeping a loss for later does not wait for the device, and reading it does not wait for what comes after it."""
    matrix = torch.eye(4096 if device.type == "cuda" else 64, device=device)

    def work() -> torch.Tensor:
        product = matrix
        for _ in range(200):
            product = product @ matrix
        return product

    busy_s = seconds_of(work, device)
    loss = work().sum() * 0 + 2.5
    started = time.perf_counter()
    copy = HostCopy(loss, loss + 1)
    kept_s = time.perf_counter() - started
    work()
    require(copy.read() == [2.5, 3.5], f"read {copy.read()}")
    read_s = time.perf_counter() - started
    synchronize(device)
    if device.type == "cuda":
        require(kept_s < busy_s / 4, f"keeping took {kept_s:.3f} s, beside {busy_s:.3f} s of work")
        require(read_s < 1.7 * busy_s, f"reading took {read_s:.3f} s: it waited for the work after it, too")
    return f"kept in {1e6 * kept_s:.0f} us beside {1000 * busy_s:.1f} ms of queued work"


def bucket_views(device: torch.device, place: Path) -> str:
    """Gradients stay where DDP's buckets are, so that they exist once."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{find_free_port(29_600)}",
        rank=0,
        world_size=1,
    )
    size = 2048 if device.type == "cuda" else 64
    model = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(16))).to(device)
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    inputs = torch.rand(1, size, device=device)
    ddp(inputs).sum().backward()
    move_gradients_into_buckets(ddp)
    places = [weight.grad.data_ptr() for weight in model.parameters() if weight.grad is not None]
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    for _ in range(3):
        torch._foreach_zero_([weight.grad for weight in model.parameters() if weight.grad is not None])
        with ddp.no_sync():
            ddp(inputs).sum().backward()
        ddp(inputs).sum().backward()
        now = [weight.grad.data_ptr() for weight in model.parameters() if weight.grad is not None]
        require(now == places, "the gradients have moved out of the buckets")
    grown = torch.cuda.memory_allocated(device) - before if device.type == "cuda" else 0
    weights_mib = sum(weight.numel() * 4 for weight in model.parameters()) / MIB
    dist.destroy_process_group()
    require(grown / MIB < weights_mib / 2, f"memory grew by {grown / MIB:.0f} MiB")
    return f"{weights_mib:.0f} MiB of gradients, memory grew by {grown / MIB:.0f} MiB in three steps"


def optimizers(device: torch.device, place: Path) -> str:
    """A step of each optimizer does not wait for the device; fused and not fused AdamW in comparison."""
    side, count = (1024, 64) if device.type == "cuda" else (16, 4)
    packages = {name: kind.implementation.partition(":")[0].partition(".")[0] for name, kind in OPTIMIZERS.items()}
    variants: dict[str, dict[str, object]] = {  # bitsandbytes is optional, custom has no package
        name: {"name": name} for name, package in packages.items() if package and find_spec(package)
    }
    variants |= {"adamw, not fused": {"name": "adamw", "fused": False}}
    times, waiting = {}, []
    for label, settings in variants.items():
        config = TrainConfig.model_validate({"optimizer": settings, "concepts": [{"path": "x"}]})
        weights = [nn.Parameter(torch.rand(side, side, device=device)) for _ in range(count)]
        optimizer = build_optimizer(weights, config)
        for weight in weights:
            weight.grad = torch.rand_like(weight)
        for _ in range(3):
            optimizer.step()
        try:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            optimizer.step()
        except RuntimeError:
            waiting.append(label)
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        times[label] = seconds_of(optimizer.step, device)
    adamw = {label: f"{1000 * taken:.1f} ms" for label, taken in times.items() if label.startswith("adamw")}
    require(not any(label.startswith("adamw") for label in waiting), f"these wait for the device: {waiting}")
    unsynced = f"; wait for the device in each step: {', '.join(waiting)}" if waiting else ""
    return f"{len(times)} optimizers; {', '.join(f'{name} {took}' for name, took in adamw.items())}{unsynced}"


def block_offload(device: torch.device, place: Path) -> str:
    """Gradients of blocks in host memory are those of blocks on the device, bit for bit; the time of both."""
    width, count, batch = (4096, 12, 512) if device.type == "cuda" else (128, 4, 8)
    torch.manual_seed(0)
    plain = Blocks(width, count)
    offloaded = Blocks(width, count)
    offloaded.load_state_dict(plain.state_dict())
    plain.to(device, torch.bfloat16)
    offloaded.to(torch.bfloat16)
    chosen = offloaded_blocks(offloaded, 1.0)
    for layer in chain.from_iterable(chosen):
        keep_in_host_memory_(layer, torch.bfloat16)
    offload = BlockOffload(cast(list[list[QuantizedLinear]], chosen), device)
    offloaded.to(device)
    x = torch.randn(batch, width, device=device, dtype=torch.bfloat16)
    both, times = (plain, offloaded), {}
    for recompute in (False, True):
        for name, model in zip(("on the device", "in host memory"), both, strict=True):

            def step(model: nn.Module = model, recompute: bool = recompute) -> None:
                model.zero_grad()
                model(x, recompute=recompute).float().square().mean().backward()

            times[name] = seconds_of(step, device)
        gradients = [[weight.grad for weight in model.parameters() if weight.grad is not None] for model in both]
        require(all(map(torch.equal, *gradients)), f"gradients differ, with recomputation {recompute}")
    took = ", ".join(f"{1000 * seconds:.1f} ms {name}" for name, seconds in times.items())
    return f"{offload.host_bytes / MIB:.0f} MiB of frozen weights; a step takes {took}; gradients are the same bits"


def nvml_mapping(device: torch.device, place: Path) -> str:
    """NVML's GPUs, in the order of CUDA_VISIBLE_DEVICES, are torch's."""
    if device.type != "cuda":
        return f"{ONLY_ON_GPU}: NVML shows {len(visible_gpus())} GPUs that may be used"
    gpus = visible_gpus()
    require(len(gpus) == torch.cuda.device_count(), f"NVML shows {len(gpus)} GPUs, torch {torch.cuda.device_count()}")
    for number, gpu in enumerate(gpus):
        uuid = f"GPU-{str(torch.cuda.get_device_properties(number).uuid).removeprefix('GPU-')}"
        require(gpu.uuid == uuid, f"cuda:{number} is {uuid}, but NVML's number {number} is {gpu.uuid}")
    return f"{len(gpus)} GPUs in the same order, by their UUIDs"


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The shortest of a few times, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])


class Block(nn.Module):
    """A frozen layer, and a small trained one as an adapter has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.trained = nn.Linear(width, width // 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width] to [B, width]."""
        return x + torch.tanh(self.frozen(x) + self.trained(x).mean(-1, keepdim=True))


class Blocks(nn.Module):
    """Blocks, as diffusers declares them."""

    _repeated_blocks = ("Block",)

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(count))

    def forward(self, x: Tensor, *, recompute: bool) -> Tensor:
        """[B, width] to [B, width]."""
        for block in self.blocks:
            x = cast(Tensor, checkpoint(block, x, use_reentrant=False)) if recompute else block(x)
        return x
