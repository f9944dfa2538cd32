"""Whether a process trains on a GPU or on the CPU, decided before torch touches a device."""

from __future__ import annotations

import os

import torch

from modules.config import ConfigError, TrainConfig
from modules.machine import gpu_obstacle


def require_device(config: TrainConfig) -> None:
    """Hide the GPUs if the config asks for the CPU; otherwise raise ConfigError if torch cannot use those that exist.

    Call it first in every process that trains: a later change of the environment does not reach CUDA.
    """
    if config.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available() and (obstacle := gpu_obstacle(torch_says=_why_no_cuda())) is not None:
        raise ConfigError(obstacle.message, obstacle.advice)


def _why_no_cuda() -> str:
    """torch's own reason, one sentence."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0]
    return "torch finds no GPU."
