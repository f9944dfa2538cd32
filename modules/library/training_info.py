"""What this process trains on: its place in the group, its device, precision and versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from modules import __version__
from modules.distributed import device_name, software_versions


@dataclass(frozen=True)
class TrainingInfo:
    """`backend` is "nccl", "gloo", or "none" without a process group; `precision` as PyTorch is set at the moment."""

    rank: int
    local_rank: int
    world_size: int
    backend: str
    device: str  # such as "cuda:0" or "cpu"
    device_name: str
    precision: str  # of autocast, where one is active, else the default dtype; with "tf32" if matrix products use it
    threads: int  # of PyTorch on the CPU
    versions: Mapping[str, str]


def training_info() -> TrainingInfo:
    """This process, in a process group or alone; never a collective."""
    in_group = dist.is_initialized()
    rank = dist.get_rank() if in_group else 0
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    return TrainingInfo(
        rank=rank,
        local_rank=int(os.environ.get("LOCAL_RANK", rank)) if in_group else 0,
        world_size=dist.get_world_size() if in_group else 1,
        backend=dist.get_backend() if in_group else "none",
        device=str(device),
        device_name=device_name(device),
        precision=_precision(device.type),
        threads=torch.get_num_threads(),
        versions={"Tandem": __version__, **software_versions(device)},
    )


def _precision(device_type: str) -> str:
    if torch.is_autocast_enabled(device_type):
        return _short(torch.get_autocast_dtype(device_type))
    uses_tf32 = device_type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return f"{_short(torch.get_default_dtype())}{' with tf32' if uses_tf32 else ''}"


def _short(dtype: torch.dtype) -> str:
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
    return names.get(dtype, str(dtype).removeprefix("torch."))
