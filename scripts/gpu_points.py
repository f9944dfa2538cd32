"""Points that only a GPU can settle, each in a process of its own with a time limit; scripts/gpu_check.py runs them.

`python scripts/gpu_points.py NAME cuda|cpu FOLDER` checks one and prints its figures as the last line. With cpu it is a
rehearsal: the same code, as far as it runs without a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from scripts import gpu_device_points as device_points
from scripts import gpu_memory_points as memory_points
from scripts import gpu_run_points as run_points
from scripts.gpu_check_list import CheckFailed
from scripts.gpu_library import library

LIMIT_S = 600

Point = Callable[[torch.device, Path], str]

POINTS: Mapping[str, Point] = {
    "TF32 and caching": device_points.tf32,
    "metric copies": device_points.metric_copies,
    "gradients in buckets": device_points.bucket_views,
    "optimizers without waiting": device_points.optimizers,
    "blocks in host memory": memory_points.block_offload,
    "NVML's GPUs are torch's": device_points.nvml_mapping,
    "spawn launcher": run_points.spawn_launcher,
    "a failing rank does not hang": run_points.failing_rank,
    "out of memory: step": run_points.memory_forward,
    "out of memory: last backward, two ranks": run_points.memory_last_backward,
    "out of memory: probe": run_points.memory_probe,
    "out of memory: sample": run_points.memory_sample,
    "largest batch size": run_points.memory_search,
    "host memory of two ranks": run_points.host_memory,
    "modules.library": library,
}


def run_point(name: str, device: str, place: Path, limit_s: float = LIMIT_S) -> str:
    """The figures of a point, or "FAILED: why"; it gets a process of its own and `limit_s` seconds."""
    place.mkdir(parents=True)
    argv = [sys.executable, str(Path(__file__).resolve()), name, device, str(place)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"FAILED: no result within {limit_s:.0f} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines() or ["no output"]
    return lines[-1] if done.returncode == 0 else f"FAILED: {lines[-1].removeprefix('CheckFailed: ')[:300]}"


def main(argv: list[str] | None = None) -> None:
    """Check one point. Raises SystemExit with what is wrong if the check fails."""
    parser = argparse.ArgumentParser(
        description="Check one point that only a GPU can settle; scripts/gpu_check.py checks all."
    )
    parser.add_argument("name", choices=sorted(POINTS), metavar="NAME", help=f"one of: {'; '.join(sorted(POINTS))}")
    parser.add_argument(
        "device", choices=("cuda", "cpu"), help="cpu: a rehearsal, as far as the point goes without a GPU"
    )
    parser.add_argument("folder", type=Path, help="an empty folder for images and runs")
    given = parser.parse_args(argv)
    try:
        print(POINTS[given.name](torch.device(given.device), given.folder))
    except CheckFailed as error:
        sys.exit(f"CheckFailed: {error}")


if __name__ == "__main__":
    main()
