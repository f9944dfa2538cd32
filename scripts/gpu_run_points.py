"""Points of scripts/gpu_check_list.py that start runs, with the real commands or in a program of one's own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import torch

from modules.config import TrainConfig, save_config
from modules.config.io.presets import preset_data
from modules.library import GpuMonitor, Trainer, benchmark, gpu_info
from modules.run import RunFolder
from modules.run.batch_size.records import SearchResult
from scripts.gpu_check_list import MIB, require
from scripts.make_demo_data import make_demo_data
from tests.library.trainer_programs import Sums, make_model, squared_error
from tests.runs import (
    ROOT,
    Job,
    Run,
    environment,
    group_exit_codes,
    group_settings,
    tiny_config,
    train_command,
    train_group,
)


def demo(device: torch.device, place: Path) -> str:
    """The demo trains: its loss falls. The rehearsal is shorter."""
    images = place / "images"
    short = {"max_steps": 40, "warmup_steps": 10, "samples": []} if device.type == "cpu" else {}
    make_demo_data(images, count=64 if short else 1200)
    folders = {"concepts": [{"path": str(images)}], "runs_dir": str(place / "runs"), "cache_dir": str(place / "cache")}
    config = TrainConfig.model_validate({**preset_data("demo"), **folders, "run_name": "demo", **short})
    started = time.monotonic()
    done = ended(train_command(config, place / "c.json"))
    took_s = time.monotonic() - started
    require(done.returncode == 0, f"exit code {done.returncode}: {' '.join(done.stderr.split())[-250:]}")
    run = Run(RunFolder(place / "runs" / "demo"))
    some = len(run.losses) // 5
    first, last = mean(run.losses[:some]), mean(run.losses[-some:])
    require(last < first, f"the loss went from {first:.3f} to {last:.3f}")
    speed = run.events("step")[-1]["samples_per_s"]
    return f"{len(run.losses)} steps, loss {first:.2f} to {last:.2f}, {speed:.0f} images/s, {took_s:.0f} s in all"


def spawn_launcher(device: torch.device, place: Path) -> str:
    """Two processes without torchrun; they share the GPU if there is one."""
    run = trained(place, {**group_settings(2), "distributed_backend": "gloo"}, "--no_torchrun", ranks=2)
    return f"2 processes, {len(run.losses)} steps, loss {run.losses[0]:.2f} to {run.losses[-1]:.2f}"


def failing_rank(device: torch.device, place: Path) -> str:
    """A rank that fails ends the run, and its process does not hang in the communication library."""
    gpus = max(1, torch.cuda.device_count()) if device.type == "cuda" else 2
    faults = {"family_options": {"faults": [f"error:{gpus - 1}:3"]}}
    backend = "nccl" if device.type == "cuda" else "gloo"
    started = time.monotonic()
    config = tiny(place, {**group_settings(gpus), **faults, "distributed_backend": backend, "max_steps": 100})
    done = ended(train_command(config, place / "c.json", "--multi_gpu"))
    require(done.returncode == 3, f"exit code {done.returncode}: {done.stderr[-300:]}")
    require("a mistake in the family's own code" in done.stderr, f"another cause: {done.stderr[-300:]}")
    return f"{gpus} ranks over {backend}: ended with the cause, {time.monotonic() - started:.0f} s after the start"


def memory_forward(device: torch.device, place: Path) -> str:
    """Memory runs out in a step: it is skipped, and training goes on in smaller pieces."""
    settings = {"probe_memory": "off", **starved(device, "fits:0:2")}
    return said(trained(place, settings), "Out of memory")


def memory_last_backward(device: torch.device, place: Path) -> str:
    """The same on one of two ranks, in the backward in which their gradients are reduced."""
    settings = {**group_settings(2), "distributed_backend": "gloo", "probe_memory": "off"}
    settings |= starved(device, "fits:1:2")
    return said(trained(place, settings, "--no_torchrun", ranks=2), "Out of memory")


def memory_probe(device: torch.device, place: Path) -> str:
    """The probe finds before the first step how many samples fit."""
    settings = {"probe_memory": "on", **starved(device, "fits:0:2")}
    return said(trained(place, settings), "Memory probe")


def memory_search(device: torch.device, place: Path) -> str:
    """The search for the largest batch ends below its memory target, and a run with its answer needs no smaller one."""
    settings: dict[str, object] = {"family_options": {"faults": ["fits:0:3"]}}
    flags = []
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        settings = {"family": "pixel_diffusion", "resolution": 64, "aspect_ratio_bucketing": False}
        flags = ["--memory_target", f"{(total - free + (3 << 30)) / total:.4f}"]
    config, result = tiny(place, settings), place / "result.json"
    save_config(config, place / "search.json")
    script = str(ROOT / "scripts" / "find_batch_size.py")
    argv = [sys.executable, script, "--config", str(place / "search.json"), "--json", str(result), *flags]
    done = ended(argv)
    require(done.returncode == 0, f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    found = SearchResult.load(result)
    rank = found.ranks[0]
    require(0 < found.batch_size < found.most, f"batch_size {found.batch_size}: the data ended before the memory")
    require(rank.peak <= rank.limit, f"{rank.peak >> 20} MiB is more than the limit of {rank.limit >> 20} MiB")
    batch = {"batch_size": found.batch_size, "global_batch_size": found.batch_size, "probe_memory": "on"}
    run = trained(place, {**settings, **batch})
    require("Memory probe" not in run.warnings, f"it does not fit: {run.warnings[:300]}")
    return f"batch_size {found.batch_size}: {rank.peak >> 20} of {rank.limit >> 20} MiB"


def memory_sample(device: torch.device, place: Path) -> str:
    """A sample that does not fit is left out with a warning."""
    side = 8192 if device.type == "cuda" else 32
    samples = [{"prompt": "a red circle", "width": side, "height": side, "steps": 1}]
    settings = {"samples": samples, "sample_every": "2 steps", "batch_size": 4, "global_batch_size": 4}
    settings = {**starved(device, "fits_sample:0:700"), **settings}
    return said(trained(place, settings), "left out and training continues")


def host_memory(device: torch.device, place: Path) -> str:
    """Main memory of one and of two ranks that start from the same base model."""
    from benchmarks.host_memory import KINDS, peaks  # diffusers, which the other points do without
    from tests.families.tiny_pipelines import fat_sd, tiny_sd

    model = fat_sd(place / "model", 512) if device.type == "cuda" else tiny_sd(place / "model")
    kind = KINDS["LoRA, frozen weights bf16"]
    one, two = (peaks(place, model, ranks, kind)["Private"] for ranks in (1, 2))
    size = sum(file.stat().st_size for file in model.rglob("*.safetensors")) / MIB
    return f"model of {size:.0f} MiB: one rank {one:.0f} MiB, two ranks together {two:.0f} MiB"


def library(device: torch.device, place: Path) -> str:
    """Trainer with a model on the device, in this process and in one for each GPU; GPU metrics and a benchmark."""
    ranks = torch.cuda.device_count() if device.type == "cuda" else 2
    modes: dict[str, dict[str, object]] = {
        "one": {"training_mode": "single"},
        "many": {"training_mode": "distributed", "world_size": ranks},
    }
    models = {name: make_model().to(device) for name in modes}
    with GpuMonitor(interval_s=0.2) as monitor:
        for name, mode in modes.items():
            Trainer(
                models[name],
                Sums(),
                loss=squared_error,
                config={**mode, "epochs": 3, "batch_size": 4, "global_batch_size": 8, "learning_rate": 0.02},
                precision="fp64",
                device="cpu" if device.type == "cpu" else "auto",
                loader_workers=0,
                runs_dir=str(place / "runs"),
                run_name=name,
            ).fit()
    one, many, start = (model.state_dict() for model in (*models.values(), make_model().to(device)))
    difference = max(float((one[name] - many[name]).abs().max()) for name in one)
    has_trained = not all(torch.equal(one[name], start[name]) for name in one)
    require(difference <= 1e-6 and has_trained, f"the weights of one process and of {ranks} differ by {difference:g}")
    if device.type == "cuda":
        _check_metrics(device, monitor)
    return f"{ranks} processes train like one; the weights differ by {difference:.1e}"


def _check_metrics(device: torch.device, monitor: GpuMonitor) -> None:
    gpus, figures = gpu_info(), monitor.summary()
    has_all = len(gpus) == torch.cuda.device_count() and f"gpu {gpus[0].index} memory_used_mib" in figures
    require(has_all, f"gpu_info shows {len(gpus)} GPUs, GpuMonitor {', '.join(figures)}")
    batch = torch.rand(64, 4, dtype=torch.float64, device=device)
    memory = benchmark(make_model().to(device), (batch, batch.sum(dim=1, keepdim=True)), squared_error).memory
    require(memory is not None and 0 < memory.efficiency <= 1, f"the benchmark's memory is {memory}")


def starved(device: torch.device, fault: str) -> dict[str, object]:
    """Settings of a run that runs out of memory: really on a GPU, by a fault of the tests' family on a CPU."""
    if device.type == "cpu":
        return {"family_options": {"faults": [fault]}}
    # several GiB of activations at once; what one sample of 64 px takes fits many times
    batch = {"resolution": 64, "batch_size": 1024, "global_batch_size": 1024}
    return {"family": str(ROOT / "tests" / "small_memory_family.py"), **batch}


def tiny(place: Path, settings: Mapping[str, object]) -> TrainConfig:
    """Eight steps on images in `place`."""
    images = place / "images"
    make_demo_data(images, count=2048 if "family" in settings else 41)
    return tiny_config(images, place, **{"max_steps": 8, "startup_timeout_s": 180, "step_timeout_s": 120, **settings})


def trained(place: Path, settings: Mapping[str, object], *flags: str, ranks: int = 1) -> Run:
    """The run that the real command makes of these settings. Raises CheckFailed if it fails."""
    config = tiny(place, settings)
    if 0 < torch.cuda.device_count() < ranks:  # the command asks for a GPU each
        run = train_group(ranks, {"run": Job(config)})["run"]
        require(not any(group_exit_codes(run, ranks)), f"exit codes {group_exit_codes(run, ranks)}")
        return run
    done = ended(train_command(config, place / "c.json", *(["--multi_gpu"] if ranks > 1 else []), *flags))
    require(done.returncode == 0, f"exit code {done.returncode}: {' '.join(done.stderr.split())[-250:]}")
    return Run(RunFolder(Path(config.runs_dir) / str(config.run_name)))


def ended(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Who started this process limits the time, and ends what the command has started."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment(), cwd=ROOT)


def said(run: Run, words: str) -> str:
    """The warning of a run that has these words, shortened. Raises CheckFailed without one."""
    found = [line for line in run.warnings.splitlines() if words in line]
    require(bool(found), f"no warning of '{words}'; the warnings are: {run.warnings[:200] or 'none'}")
    return f"{len(run.losses)} steps; {found[0].split('. ')[0][:150]}"
