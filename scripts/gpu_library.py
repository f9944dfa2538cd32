"""The point of scripts/gpu_points.py for modules.library."""

from __future__ import annotations

from pathlib import Path

import torch

from modules.library import GpuMonitor, Trainer, benchmark, gpu_info
from scripts.gpu_check_list import CheckFailed
from tests.library.trainer_programs import Sums, make_model, squared_error


def library(device: torch.device, place: Path) -> str:
    """Trainer with a model on the device, in this process and in one for each GPU; GPU metrics and a benchmark."""
    ranks = torch.cuda.device_count() if device.type == "cuda" else 2
    modes: dict[str, dict[str, object]] = {
        "one": {"training_mode": "single"},
        "many": {"training_mode": "distributed", "world_size": ranks},
    }
    models = {name: make_model().to(device) for name in modes}
    with GpuMonitor(interval_s=0.2) as monitor:
        for name, mode in modes.items():
            Trainer(
                models[name],
                Sums(),
                loss=squared_error,
                config={**mode, "epochs": 3, "batch_size": 4, "global_batch_size": 8, "learning_rate": 0.02},
                precision="fp64",
                device="cpu" if device.type == "cpu" else "auto",
                loader_workers=0,
                runs_dir=str(place / "runs"),
                run_name=name,
            ).fit()
    one, many, start = (model.state_dict() for model in (*models.values(), make_model().to(device)))
    difference = max(float((one[name] - many[name]).abs().max()) for name in one)
    if difference > 1e-6 or all(torch.equal(one[name], start[name]) for name in one):
        raise CheckFailed(f"the weights of one process and of {ranks} differ by {difference:g}")
    if device.type == "cuda":
        _check_metrics(device, monitor)
    return f"{ranks} processes train like one; the weights differ by {difference:.1e}"


def _check_metrics(device: torch.device, monitor: GpuMonitor) -> None:
    gpus, figures = gpu_info(), monitor.summary()
    if len(gpus) != torch.cuda.device_count() or f"gpu {gpus[0].index} memory_used_mib" not in figures:
        raise CheckFailed(f"gpu_info shows {len(gpus)} GPUs, GpuMonitor {', '.join(figures)}")
    batch = torch.rand(64, 4, dtype=torch.float64, device=device)
    memory = benchmark(make_model().to(device), (batch, batch.sum(dim=1, keepdim=True)), squared_error).memory
    if memory is None or not 0 < memory.efficiency <= 1:
        raise CheckFailed(f"the benchmark's memory is {memory}")
