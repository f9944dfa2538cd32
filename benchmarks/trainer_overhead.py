"""The trainer against a bare hand-written loop: steps per second, memory, time to the first step.

python benchmarks/trainer_overhead.py [--part steps|distributed|memory|start ...] [--steps N]

The trainer is the real one, with events, TensorBoard, metric syncs, clipping and EMA; the bare loop is tuned (fused
AdamW, foreach clipping, static graph). Both run in one process and take turns step by step, so that a busy machine
slows both. A second copy of the bare loop takes its turn as well: its ratio to the first shows the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.targets import Targets
from modules.config import TrainConfig, save_config
from modules.machine import find_free_port
from modules.run import RunFolder, read_events
from scripts.make_demo_data import make_demo_data

MODELS = {"1 M": 24, "30 M": 152}  # parameters -> width of pixel_diffusion
WIDE = 64  # from this width on, smaller batches and fewer steps
SPEED, MEMORY, START_S = 0.97, 1.1, 3.0  # the targets
HEADING = f"{'':<34}" + 2 * f"{'ms':>9}{'bare':>9}{'ratio':>7}{'noise':>7}{'mean':>7}"


def main() -> None:
    arguments = parser().parse_args()
    parts = arguments.part or list(PARTS)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {arguments.threads} threads\n")
    with tempfile.TemporaryDirectory(prefix="tandem-overhead-") as folder:
        bench = Bench(Path(folder), arguments.steps, arguments.threads)
        for part in parts:
            PARTS[part](bench)
    bench.targets.end()


class Bench:
    """A folder with images and a warm cache, in which runs are made."""

    def __init__(self, folder: Path, steps: int, threads: int) -> None:
        self.folder, self.steps, self.threads, self.targets = folder, steps, threads, Targets()
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
        make_demo_data(folder / "images", count=400)

    def config(self, width: int, steps: int, **settings: object) -> TrainConfig:
        """The demo's kind of run: 16 images of 32 x 32 per step and rank (large: 4), EMA, clipping, TensorBoard."""
        return TrainConfig.model_validate(
            {
                "concepts": [{"path": str(self.folder / "images")}],
                "resolution": 32,
                "aspect_ratio_bucketing": False,
                "drop_last": True,
                "cache_dir": str(self.folder / "cache"),
                "runs_dir": str(self.folder / "runs"),
                "family_options": {"width": width},
                "batch_size": 16 if width < WIDE else 4,
                "epochs": 10_000,
                "max_steps": steps,
                "ema": True,
                "channels_last": True,
                "optimizer": {"name": "adamw", "fused": True},
                "loader_workers": 0,
                "distributed_backend": "gloo",
                **settings,
            }
        )

    def child(self, mode: str, config: TrainConfig, *options: str, ranks: int = 1) -> dict[str, object]:
        """The result of one measuring process, or of rank 0 of several."""
        run = RunFolder.create(config)
        file, result = run.path / "given.json", run.path / "result.json"
        save_config(config, file)
        port = find_free_port(12355)
        torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", f"--master_port={port}"]
        command = [sys.executable, *(torchrun if ranks > 1 else []), str(ROOT / "benchmarks" / "side_by_side.py"), mode]
        command += ["--config", str(file), "--run_folder", str(run.path), "--result", str(result)]
        command += ["--batches", str(self.folder / "batches.safetensors"), f"--threads={self.threads}", *options]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        found: dict[str, object] = json.loads(result.read_text())
        return found


def steps(bench: Bench) -> None:
    """GenericTrainer against the bare loop."""
    print(f"Steps of GenericTrainer (target {SPEED})\n{HEADING}")
    for name, width in MODELS.items():
        count = bench.steps if width < WIDE else max(30, bench.steps // 4)
        row(bench, f"{name}, data in memory", bench.child("turns", bench.config(width, count)))
        if width < WIDE:
            workers = bench.config(width, count, loader_workers=2)
            row(bench, f"{name}, its own loader, 2 workers", bench.child("turns", workers, "--real_loader"))
            alone = bench.child("turns", bench.config(width, count), "--real_loader")
            row(bench, f"{name}, its own loader, no worker", alone)
    print()


def distributed(bench: Bench) -> None:
    """DistributedTrainer on two processes against the bare DDP loop on two."""
    print(f"Steps of DistributedTrainer, 2 gloo processes (target {SPEED})\n{HEADING}")
    for name, width in MODELS.items():
        count = bench.steps if width < WIDE else max(30, bench.steps // 4)
        for static in (True, False):
            config = bench.config(width, count, enable_multi_gpu=True, world_size=2, static_graph=static)
            row(bench, f"{name}, 2 processes, static_graph={static}", bench.child("turns", config, ranks=2))
    print()


def row(bench: Bench, label: str, result: dict[str, object]) -> None:
    """Medians of one comparison, wall time and then CPU time; `noise` is the ratio of two equal bare loops.

    `mean` is the ratio of the means.
    """
    times = result["times"]
    assert isinstance(times, dict)
    line = f"{label:<34}"
    for kind in ("wall", "cpu"):
        own, bare, again = (times[name][kind] for name in ("trainer", "bare", "bare again"))
        middle, bare_ms = statistics.median(own) * 1e3, statistics.median(bare) * 1e3
        noise = bare_ms / statistics.median(again) / 1e3
        mean = statistics.mean(bare) / statistics.mean(own)
        line += f"{middle:>9.2f}{bare_ms:>9.2f}{bare_ms / middle:>7.3f}{noise:>7.3f}{mean:>7.3f}"
        if kind == "wall":
            bench.targets.at_least(f"{label}: bare / trainer", bare_ms / middle, SPEED)
    print(line, flush=True)


def memory(bench: Bench) -> None:
    """Peak memory of the trainer's process against that of the bare loop's."""
    print(f"Peak memory in MiB (target {MEMORY}); the last column includes saving at the end")
    print(f"{'':<34}{'trainer':>9}{'bare':>9}{'ratio':>7}{'saving':>9}")
    for name, width in MODELS.items():
        config = bench.config(width, 20)
        bench.child("batches", bench.config(width, 1))
        bare, own = bench.child("bare", config), bench.child("trainer", config)
        real = bench.child("trainer", config, "--real_loader")
        for label, found in (("data in memory", own), ("its own loader", real)):
            peaks = (found["peak_mib"], bare["peak_mib"], found["peak_with_saving_mib"])
            peak, bare_peak, saved = (float(str(peak)) for peak in peaks)
            line = f"{peak:>9.0f}{bare_peak:>9.0f}{peak / bare_peak:>7.3f}{saved / bare_peak:>9.3f}"
            print(f"{f'{name}, {label}':<34}{line}", flush=True)
            bench.targets.at_most(f"{name}, {label}: peak memory / bare", peak / bare_peak, MEMORY)
    print()


def start(bench: Bench) -> None:
    """From the command to the first step's event with a warm cache, against importing torch and diffusers."""
    print(f"Seconds from start to the first step, warm cache (target: at most {START_S:g} more than the imports)")
    first_step_s(bench)  # warms up our caches and the disk's
    imports, starts = [], []
    for _ in range(3):
        began = time.time()
        subprocess.run([sys.executable, "-c", "import torch, diffusers"], check=True, env=bench.environment)
        imports.append(time.time() - began)
        starts.append(first_step_s(bench))
    more = statistics.median(starts) - statistics.median(imports)
    for label, seconds in (("import torch, diffusers", imports), ("scripts/train.py, first step", starts)):
        print(f"{label:<34}{statistics.median(seconds):>9.2f}   of {', '.join(f'{s:.2f}' for s in sorted(seconds))}")
    print(f"{'more':<34}{more:>9.2f}\n")
    bench.targets.at_most("start to the first step, s more than the imports", more, START_S)


def first_step_s(bench: Bench) -> float:
    """One run of the real command."""
    config = bench.config(MODELS["1 M"], 5, run_name=f"start-{time.time_ns()}")
    file = bench.folder / "start.json"
    save_config(config, file)
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(file)]
    began = time.time()
    subprocess.run(command, check=True, env=bench.environment, stdout=subprocess.DEVNULL)
    events = read_events(RunFolder.open(config.runs_dir, str(config.run_name)).events_file)
    return float(str(next(event["t"] for event in events if event["type"] == "step"))) - began


PARTS: dict[str, Callable[[Bench], None]] = {
    "steps": steps,
    "distributed": distributed,
    "memory": memory,
    "start": start,
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be given several times")
    top.add_argument("--steps", type=int, default=300, help="steps of each loop for the small model")
    top.add_argument("--threads", type=int, default=1, help="threads of each process")
    return top


if __name__ == "__main__":
    main()
