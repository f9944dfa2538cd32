"""An environment in which processes find the NVIDIA GPUs that a test describes; see tests/fake_nvml."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).with_name("fake_nvml")
LOST, NO_PERMISSION, DRIVER_NOT_LOADED, VERSION_MISMATCH = 15, 4, 9, 18  # NVML_ERROR_* of nvml.h
RTX: Final[dict[str, object]] = {"name": "NVIDIA GeForce RTX 4090", "uuid": "GPU-aa", "memory_mib": 24_564}


def fake_nvml(
    *gpus: dict[str, object], driver: str = "560.94", cuda: int = 12_060, init: int = 0, path: Sequence[str] = ()
) -> dict[str, str]:
    """The variables to add to a process's environment; `cuda` is 1000 x major + 10 x minor, `path` its PYTHONPATH."""
    machine = {"driver": driver, "cuda": cuda, "init": init, "gpus": list(gpus)}
    return {"PYTHONPATH": ":".join([str(FOLDER), *path]), "TANDEM_FAKE_NVML": json.dumps(machine)}
