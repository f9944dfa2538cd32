"""Points of scripts/gpu_points.py about what is kept in the device's memory during training."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modules.diffusion.quantized import QuantizedLinear, keep_in_host_memory_
from modules.training.block_offload import BlockOffload, offloaded_blocks
from scripts.gpu_check_list import MIB, require
from scripts.gpu_device_points import seconds_of


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
