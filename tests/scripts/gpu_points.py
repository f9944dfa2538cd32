"""Points for scripts/gpu_worker.py; nothing heavy is imported, because each test starts several processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def works(device: torch.device, place: Path) -> str:
    return f"on {device}"


def hangs(device: torch.device, place: Path) -> str:
    time.sleep(600)
    return ""


def fails(device: torch.device, place: Path) -> str:
    raise ValueError("on purpose")


def dies(device: torch.device, place: Path) -> str:
    os._exit(7)
