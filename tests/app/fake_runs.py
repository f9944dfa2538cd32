"""Run folders as training would leave them, written at once, with any number of steps, ranks and samples."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.config import TrainConfig, save_config
from modules.run import RunFolder

PROMPTS = ("a red circle", "a blue square on black", "a yellow triangle on grey", "a pink star", "a green cross")


def make_fake_run(
    path: Path,
    *,
    steps: int = 200,
    total: int | None = None,
    ranks: int = 4,
    samples_every: int = 0,
    images: bool = True,
    ended: str | None = "finished",
    seed: int = 0,
    started_at: float | None = None,
    **settings: object,
) -> RunFolder:
    """Write a run; `ended` is the reason of its `finished` event, None omits the event."""
    folder = RunFolder(path)
    for each in (folder.commands_dir, folder.samples_dir, folder.log_dir, folder.backup_dir):
        each.mkdir(parents=True, exist_ok=True)
    samples = [{"prompt": prompt} for prompt in PROMPTS]
    config = TrainConfig.model_validate(
        {"run_name": path.name, "runs_dir": str(path.parent), "samples": samples, **settings}
    )
    save_config(config, folder.config_file)
    clock = started_at if started_at is not None else time.time() - 0.4 * steps
    with folder.events_file.open("w") as file:
        for event in _first_events(config, total or steps, ranks, clock):
            file.write(line(event))
        for event in _training(folder, steps, total or steps, ranks, samples_every, images, random.Random(seed), clock):
            file.write(line(event))
        if ended is not None:
            code = {"finished": 0, "failed": 3}.get(ended, 130)
            file.write(line({"t": clock + 0.4 * steps + 1, "type": "finished", "reason": ended, "exit_code": code}))
    return folder


_TRAINS = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from modules.run import RunFolder
from modules.run.folder.run_lock import training_lock
with training_lock(RunFolder(Path(sys.argv[2]))):
    print('held', flush=True); sys.stdin.read()
"""


@contextmanager
def active(run: Path) -> Iterator[None]:
    """Inside the block a process holds the lock of the run, as one that trains does."""
    argv = [sys.executable, "-c", _TRAINS, str(Path(__file__).parents[2]), str(run)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.kill()


def line(event: dict[str, object]) -> str:
    """One event as a line of the file."""
    return json.dumps({"v": 1, **event}) + "\n"


def step_event(step: int, clock: float, rng: random.Random, total: int = 1000) -> dict[str, object]:
    """A realistic step event."""
    loss = 0.08 + 0.6 * math.exp(-step / (0.15 * total)) + 0.04 * rng.random()
    warm = min(1.0, step / (0.05 * total + 1))
    return {
        "t": round(clock, 3),
        "type": "step",
        "step": step,
        "epoch": step // 100,
        "samples_seen": 16 * step,
        "loss": loss,
        "lr": 2e-4 * warm * (0.5 + 0.5 * math.cos(math.pi * step / total)),
        "samples_per_s": 42 + 3 * math.sin(step / 70) + rng.random(),
        "grad_norm": 0.4 + 0.6 * math.exp(-step / (0.2 * total)) + 0.2 * rng.random(),
        "eta_s": 0.4 * (total - step),
    }


def rank_rows(ranks: int, rng: random.Random) -> list[dict[str, object]]:
    """The rows of a `ranks` event of processes on two machines; the second to last is slow."""
    rows: list[dict[str, object]] = []
    for rank in range(ranks):
        slow = 1.6 if rank == ranks - 2 else 1.0
        own = 0.25 * slow + 0.01 * rng.random()
        rows.append(
            {
                "host": "alpha" if rank < (ranks + 1) // 2 else "beta",
                "rank": rank,
                "step_s": 0.44,
                "data_s": 0.012,
                "own_s": own,
                "samples": 4.0,
                "index": rank,
                "utilization_percent": 88 + int(10 * rng.random()),
                "memory_used_mib": 17_300 + 100 * rank,
                "memory_total_mib": 24_564,
                "temperature_c": 61 + 5 * rank,
                "power_w": 288.0 + 10 * rng.random(),
            }
        )
    return rows


def write_sample(file: Path, prompt: str, step: int, size: int = 32) -> None:
    """Write a small image with its settings."""
    info = PngInfo()
    settings = {
        "prompt": prompt,
        "negative_prompt": "",
        "width": size,
        "height": size,
        "steps": 12,
        "guidance_scale": 2.0,
    }
    info.add_itxt("tandem", json.dumps({**settings, "seed": 7, "step": step}))
    shade = random.Random(prompt).randrange(256)
    image = Image.new("RGB", (size, size), (shade, step % 256, 120))
    image.save(file, pnginfo=info)


def _first_events(config: TrainConfig, total: int, ranks: int, clock: float) -> list[dict[str, object]]:
    return [
        {"t": clock, "type": "phase", "phase": "loading"},
        {"t": clock, "type": "phase", "phase": "caching", "done": 1200, "total": 1200},
        {
            "t": clock,
            "type": "started",
            "config": config.model_dump(mode="json"),
            "world": ranks,
            "backend": "nccl",
            "host": "alpha",
            "devices": ["NVIDIA GeForce RTX 4090"] * ranks,
            "total_steps": total,
            "steps_per_epoch": 100,
            "learning_rate": 2e-4,
        },
        {"t": clock, "type": "phase", "phase": "training"},
    ]


def _training(
    folder: RunFolder,
    steps: int,
    total: int,
    ranks: int,
    samples_every: int,
    images: bool,
    rng: random.Random,
    clock: float,
) -> Iterator[dict[str, object]]:
    for step in range(1, steps + 1):
        now = clock + 0.4 * step
        yield step_event(step, now, rng, total)
        if step % 5 == 0:
            yield {"t": now, "type": "ranks", "ranks": rank_rows(ranks, rng)}
        if step % max(1, steps // 12) == 0:
            loss = 0.1 + 0.62 * math.exp(-step / (0.15 * total))
            yield {"t": now, "type": "validation", "set": "validation", "loss": loss, "step": step}
        if step % max(1, steps // 4) == 0:
            yield {"t": now, "type": "backup", "path": str(folder.backup_dir / f"step-{step:06d}"), "step": step}
        if samples_every and step % samples_every == 0:
            for number, prompt in enumerate(PROMPTS):
                file = folder.samples_dir / f"step-{step:06d}-{number:02d}.png"
                if images:
                    write_sample(file, prompt, step)
                yield {"t": now, "type": "sample", "file": str(file), "prompt": prompt, "step": step}
