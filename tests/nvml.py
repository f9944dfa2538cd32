"""An environment in which processes find the NVIDIA GPUs that a test describes; see tests/fake_nvml."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).with_name("fake_nvml")
LOST, NO_PERMISSION, DRIVER_NOT_LOADED, VERSION_MISMATCH = 15, 4, 9, 18  # NVML_ERROR_* of nvml.h
RTX: Final[dict[str, object]] = {"name": "NVIDIA GeForce RTX 4090", "uuid": "GPU-aa", "memory_mib": 24_564}

# Answers as drivers give them: of a data centre's GPU under full load, of a laptop's, and of one divided by MIG.
H100: Final[dict[str, object]] = {
    "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-h100", "memory_mib": 81_559, "used_mib": 20_480, "utilization": 98,
    "temperature_c": 61, "power_mw": 652_310, "limit_mw": 700_000, "default_mw": 700_000, "reasons": 0x04,
    "clocks": {"1": 1755, "2": 2619}, "max_clocks": {"1": 1980, "2": 2619},
}  # fmt: skip
LAPTOP: Final[dict[str, object]] = {
    "name": "NVIDIA GeForce RTX 3050 Laptop GPU", "uuid": "GPU-laptop", "memory_mib": 4096, "used_mib": 3900,
    "utilization": 100, "temperature_c": 87, "clocks": {"1": 900, "2": 5501}, "reasons": 0x20,
}  # fmt: skip
A100_MIG: Final[dict[str, object]] = {
    "name": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-a100", "memory_mib": 40_960, "temperature_c": 45,
    "power_mw": 130_000, "limit_mw": 400_000, "reasons": 0, "clocks": {"1": 1410, "2": 1215},
    "mig": [
        {"name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "uuid": "MIG-slice", "memory_mib": 20_096, "used_mib": 512},
        {"name": "NVIDIA A100-SXM4-40GB MIG 2g.10gb", "uuid": "MIG-small", "memory_mib": 9_856, "used_mib": 12},
    ],
}  # fmt: skip


def fake_nvml(
    *gpus: dict[str, object], driver: str = "560.94", cuda: int = 12_060, init: int = 0, path: Sequence[str] = ()
) -> dict[str, str]:
    """The variables to add to a process's environment; `cuda` is 1000 x major + 10 x minor, `path` its PYTHONPATH."""
    machine = {"driver": driver, "cuda": cuda, "init": init, "gpus": list(gpus)}
    return {"PYTHONPATH": ":".join([str(FOLDER), *path]), "TANDEM_FAKE_NVML": json.dumps(machine)}
