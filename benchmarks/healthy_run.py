"""Whether a healthy run is left alone: python benchmarks/healthy_run.py [--ranks 1 2] [--steps N] [--width N]

For each number of ranks, scripts/train.py trains that many steps of the demo's model, in which there is everything
that could be taken for a fault: loader workers, validations, samples and backups. Prints how long the steps were and
each `warning` event, and ends with 1 if there was any. Needs a quiet machine: other programs make a run slow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config import TrainConfig, save_config
from modules.run import RunFolder
from modules.run.folder.event_reader import read_events
from modules.run.folder.events import Event
from scripts.make_demo_data import make_demo_data

EVERY = 200  # steps between two validations, samples and backups


def main() -> None:
    """Train with each number of ranks; exit code 1 after a warning or a failure."""
    options = parser().parse_args()
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {options.steps} steps (target: no warning)\n"
    )
    failed = False
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="tandem-healthy-") as place:
            failed |= not is_healthy(Path(place), ranks, options)
    sys.exit(failed)


def is_healthy(place: Path, ranks: int, options: argparse.Namespace) -> bool:
    """Train in a folder; whether the run was complete and warned of nothing."""
    config = config_of(place, ranks, options)
    save_config(config, place / "config.json")
    command = [sys.executable, str(ROOT / "scripts/train.py"), "--config", str(place / "config.json")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout[-3000:])
        return False
    (folder,) = (RunFolder(each) for each in Path(config.runs_dir).iterdir() if each.is_dir())
    events = read_events(folder.events_file)
    warnings = [str(event["message"]) for event in events if event["type"] == "warning"]
    print(f"{ranks} ranks: {step_ms(events):.1f} ms a step, {len(warnings)} warnings")
    for text in warnings:
        print(f"  {text}")
    return not warnings


def config_of(place: Path, ranks: int, options: argparse.Namespace) -> TrainConfig:
    """The demo, small, with the actions of a run of its own."""
    make_demo_data(place / "images", count=64)
    several = {"enable_multi_gpu": True, "world_size": ranks, "use_torchrun": False}
    every = f"{min(EVERY, max(1, options.steps // 4))} steps"
    return TrainConfig.model_validate(
        {
            "concepts": [{"path": str(place / "images")}],
            "resolution": options.resolution,
            "cache_dir": str(place / "cache"),
            "runs_dir": str(place / "runs"),
            "run_name": "healthy",
            "family_options": {"width": options.width},
            "batch_size": options.batch_size,
            "epochs": 1_000_000,
            "max_steps": options.steps,
            "loader_workers": options.workers,
            "validation_split": 0.1,
            "validate_every": every,
            "sample_every": every,
            "backup_every": every,
            "samples": [{"prompt": "a red circle", "steps": 4}],
            **(several if ranks > 1 else {}),
        }
    )


def step_ms(events: list[Event]) -> float:
    """The median of what rank 0's steps took."""
    found = []
    for event in events:
        rows = event.get("ranks") if event["type"] == "ranks" else None
        if isinstance(rows, list) and rows:
            found.append(float(rows[0]["step_s"]))
    return 1000 * median(found) if found else float("nan")


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    found.add_argument("--steps", type=int, default=1000)
    found.add_argument("--width", type=int, default=16)
    found.add_argument("--resolution", type=int, default=32)
    found.add_argument("--batch_size", type=int, default=4)
    found.add_argument("--workers", type=int, default=1, help="loader workers of each rank")
    return found


if __name__ == "__main__":
    main()
