"""Points for scripts/gpu_worker.py; nothing heavy is imported, because each test starts several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def works(device: torch.device, place: Path) -> str:
    return f"on {device}"


def hangs(device: torch.device, place: Path) -> str:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)", str(place)], check=False)
    return ""


def fails(device: torch.device, place: Path) -> str:
    raise ValueError("on purpose")


def dies(device: torch.device, place: Path) -> str:
    os._exit(7)
