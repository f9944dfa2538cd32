"""The facts of a run for its `started` event and for the first lines on the terminal."""

from __future__ import annotations

import platform

import torch

from modules.machine import hostname
from modules.training.assembly import Parts
from modules.training.wishes import Ending


def started_facts(parts: Parts, devices: list[str], backend: str) -> dict[str, object]:
    """What the run is made of, as the `started` event holds it; `devices` has one entry for each rank."""
    return {
        "config": parts.config.model_dump(mode="json"),
        "world": len(devices),
        "backend": backend,
        "host": hostname(),
        "devices": devices,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "trainable_parameters": sum(p.numel() for group in parts.step.optimizer.param_groups for p in group["params"]),
        "global_batch_size": parts.plan.global_batch_size,
        "steps_per_epoch": parts.data.order.steps_per_epoch,
        "total_steps": parts.total_steps,
        "original_learning_rate": parts.plan.original_learning_rate,
        "learning_rate": parts.plan.learning_rate,
    }


def total_samples(parts: Parts) -> int:
    """Samples of the whole run."""
    epochs, steps = divmod(parts.total_steps, parts.data.order.steps_per_epoch)
    return epochs * parts.data.order.epoch_size + steps * parts.data.order.global_batch_size


def device_name(device: torch.device) -> str:
    """The GPU's model, or the processor's kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"


def opening(parts: Parts, world_size: int) -> list[str]:
    """The lines that a person reads before the first step."""
    count = sum(p.numel() for group in parts.step.optimizer.param_groups for p in group["params"])
    ranks = "one process" if world_size == 1 else f"{world_size} processes"
    lines = [
        f"Training {count / 1e6:.2f} M parameters in {ranks} on {device_name(parts.device)}, "
        f"{parts.config.precision}; effective batch {parts.plan.global_batch_size}, "
        f"{parts.total_steps} steps of {parts.data.order.steps_per_epoch} an epoch."
    ]
    return [*lines, parts.plan.explanation] if parts.plan.explanation else lines


def farewell(ending: Ending, step: int, folder: str) -> str:
    """The last line on the terminal."""
    sentences = {
        "finished": f"Finished after step {step}. Everything is in {folder}.",
        "early_stopping": f"Ended early at step {step}: validation no longer improves. Everything is in {folder}.",
        "stopped": f"Stopped as asked at step {step}, after a backup. Continue with --resume latest.",
        "interrupted": f"Interrupted at step {step}, after a backup. Continue with --resume latest.",
        "terminated": f"Terminated at step {step}, after a backup. Continue with --resume latest.",
    }
    return sentences[ending.reason]
