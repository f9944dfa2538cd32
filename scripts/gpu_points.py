"""Points that only a GPU can settle, each in a process of its own with a time limit; scripts/gpu_check.py runs them.

`python scripts/gpu_points.py NAME cuda|cpu FOLDER` checks one and prints its figures as the last line. With cpu it is a
rehearsal: the same code, as far as it runs without a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
import torch.distributed as dist
from torch import nn

from modules.config import TrainConfig, save_config, trusted_code
from modules.config.sections.optimizers import OPTIMIZERS
from modules.distributed.bucket_views import move_gradients_into_buckets
from modules.distributed.host_copy import HostCopy
from modules.machine import find_free_port, visible_gpus
from modules.run import RunFolder
from modules.run.batch_size.records import SearchResult
from modules.training.optimizers import build_optimizer
from modules.training.precision import Precision, can_use_tf32
from scripts.gpu_check_list import CheckFailed
from scripts.gpu_library import library
from scripts.make_demo_data import make_demo_data
from tests.runs import Run, group_settings, run_command, tiny_config, train_command

LIMIT_S = 600
ONLY_ON_GPU = "not on the CPU"
MIB = 1 << 20

Point = Callable[[torch.device, Path], str]


def tf32(device: torch.device, place: Path) -> str:
    """TF32's switches, and how long the autoencoder of Stable Diffusion takes to encode with and without it."""
    from diffusers import AutoencoderKL

    widths, side = ((128, 256, 512, 512), 512) if device.type == "cuda" else ((32, 32), 64)
    blocks = len(widths)
    vae: Any = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=widths,
        latent_channels=4,
    )
    vae.to(device)
    images = torch.rand(4, 3, side, side, device=device)
    found = {}
    for allowed in (False, can_use_tf32("bf16", device)):
        Precision("bf16", device, tf32=allowed)
        if device.type == "cuda":
            switches = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            require(switches == (allowed, allowed), f"the switches are {switches}, not {allowed}")
        with torch.no_grad():
            found[allowed] = seconds_of(lambda: vae.encode(images), device)
    if True not in found:
        return f"4 images of {side} px encoded in {1000 * found[False]:.0f} ms; this device has no TF32"
    return f"4 images of {side} px encoded in {1000 * found[True]:.0f} ms, without TF32 {1000 * found[False]:.0f} ms"


def metric_copies(device: torch.device, place: Path) -> str:
    """Keeping a loss for later does not wait for the device, and reading it does not wait for what comes after it."""
    matrix = torch.eye(4096 if device.type == "cuda" else 64, device=device)

    def work() -> torch.Tensor:
        product = matrix
        for _ in range(200):
            product = product @ matrix
        return product

    busy_s = seconds_of(work, device)
    loss = work().sum() * 0 + 2.5
    started = time.perf_counter()
    copy = HostCopy(loss, loss + 1)
    kept_s = time.perf_counter() - started
    work()
    require(copy.read() == [2.5, 3.5], f"read {copy.read()}")
    read_s = time.perf_counter() - started
    synchronize(device)
    if device.type == "cuda":
        require(kept_s < busy_s / 4, f"keeping took {kept_s:.3f} s, beside {busy_s:.3f} s of work")
        require(read_s < 1.7 * busy_s, f"reading took {read_s:.3f} s: it waited for the work after it, too")
    return f"kept in {1e6 * kept_s:.0f} us beside {1000 * busy_s:.1f} ms of queued work"


def bucket_views(device: torch.device, place: Path) -> str:
    """Gradients stay where DDP's buckets are, so that they exist once."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{find_free_port(29_600)}",
        rank=0,
        world_size=1,
    )
    size = 2048 if device.type == "cuda" else 64
    model = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(16))).to(device)
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    inputs = torch.rand(1, size, device=device)
    ddp(inputs).sum().backward()
    move_gradients_into_buckets(ddp)
    places = [weight.grad.data_ptr() for weight in model.parameters() if weight.grad is not None]
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    for _ in range(3):
        torch._foreach_zero_([weight.grad for weight in model.parameters() if weight.grad is not None])
        with ddp.no_sync():
            ddp(inputs).sum().backward()
        ddp(inputs).sum().backward()
        now = [weight.grad.data_ptr() for weight in model.parameters() if weight.grad is not None]
        require(now == places, "the gradients have moved out of the buckets")
    grown = torch.cuda.memory_allocated(device) - before if device.type == "cuda" else 0
    weights_mib = sum(weight.numel() * 4 for weight in model.parameters()) / MIB
    dist.destroy_process_group()
    require(grown / MIB < weights_mib / 2, f"memory grew by {grown / MIB:.0f} MiB")
    return f"{weights_mib:.0f} MiB of gradients, memory grew by {grown / MIB:.0f} MiB in three steps"


def optimizers(device: torch.device, place: Path) -> str:
    """A step of each optimizer does not wait for the device; fused and not fused AdamW in comparison."""
    side, count = (1024, 64) if device.type == "cuda" else (16, 4)
    variants: dict[str, dict[str, object]] = {name: {"name": name} for name in OPTIMIZERS if name != "adamw_8bit"}
    variants |= {"adamw, not fused": {"name": "adamw", "fused": False}}
    times, waiting = {}, []
    for label, settings in variants.items():
        config = TrainConfig.model_validate({"optimizer": settings, "concepts": [{"path": "x"}]})
        weights = [nn.Parameter(torch.rand(side, side, device=device)) for _ in range(count)]
        optimizer = build_optimizer(weights, config)
        for weight in weights:
            weight.grad = torch.rand_like(weight)
        for _ in range(3):
            optimizer.step()
        try:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            optimizer.step()
        except RuntimeError:
            waiting.append(label)
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        times[label] = seconds_of(optimizer.step, device)
    adamw = {label: f"{1000 * taken:.1f} ms" for label, taken in times.items() if label.startswith("adamw")}
    require(not any(label.startswith("adamw") for label in waiting), f"these wait for the device: {waiting}")
    unsynced = f"; wait for the device in each step: {', '.join(waiting)}" if waiting else ""
    return f"{len(times)} optimizers; {', '.join(f'{name} {took}' for name, took in adamw.items())}{unsynced}"


def nvml_mapping(device: torch.device, place: Path) -> str:
    """NVML's GPUs, in the order of CUDA_VISIBLE_DEVICES, are torch's."""
    if device.type != "cuda":
        return f"{ONLY_ON_GPU}: NVML shows {len(visible_gpus())} GPUs that may be used"
    gpus = visible_gpus()
    require(len(gpus) == torch.cuda.device_count(), f"NVML shows {len(gpus)} GPUs, torch {torch.cuda.device_count()}")
    for number, gpu in enumerate(gpus):
        uuid = f"GPU-{str(torch.cuda.get_device_properties(number).uuid).removeprefix('GPU-')}"
        require(gpu.uuid == uuid, f"cuda:{number} is {uuid}, but NVML's number {number} is {gpu.uuid}")
    return f"{len(gpus)} GPUs in the same order, by their UUIDs"


def spawn_launcher(device: torch.device, place: Path) -> str:
    """Two processes without torchrun; they share the GPU if there is one."""
    run = trained(device, place, {**group_settings(2), "distributed_backend": "gloo"}, "--no_torchrun", ranks=2)
    return f"2 processes, {len(run.losses)} steps, loss {run.losses[0]:.2f} to {run.losses[-1]:.2f}"


def failing_rank(device: torch.device, place: Path) -> str:
    """A rank that fails ends the run, and its process does not hang in the communication library."""
    gpus = max(1, torch.cuda.device_count()) if device.type == "cuda" else 2
    faults = {"family_options": {"faults": [f"error:{gpus - 1}:3"]}}
    backend = "nccl" if device.type == "cuda" else "gloo"
    started = time.monotonic()
    config = tiny(place, {**group_settings(gpus), **faults, "distributed_backend": backend, "max_steps": 100})
    done = run_command(train_command(config, place / "c.json", "--multi_gpu"), **environment(device))
    require(done.returncode == 3, f"exit code {done.returncode}: {done.stderr[-300:]}")
    require("a mistake in the family's own code" in done.stderr, f"another cause: {done.stderr[-300:]}")
    return f"{gpus} ranks over {backend}: ended with the cause, {time.monotonic() - started:.0f} s after the start"


def memory_forward(device: torch.device, place: Path) -> str:
    """Memory runs out in a step: it is skipped, and training goes on in smaller pieces."""
    settings = {"probe_memory": "off", **starved(device, "fits:0:2")}
    return said(trained(device, place, settings), "Out of memory")


def memory_last_backward(device: torch.device, place: Path) -> str:
    """The same on one of two ranks, in the backward in which their gradients are reduced."""
    settings = {**group_settings(2), "distributed_backend": "gloo", "probe_memory": "off"}
    settings |= starved(device, "fits:1:2")
    return said(trained(device, place, settings, "--no_torchrun", ranks=2), "Out of memory")


def memory_probe(device: torch.device, place: Path) -> str:
    """The probe finds before the first step how many samples fit."""
    settings = {"probe_memory": "on", **starved(device, "fits:0:2")}
    return said(trained(device, place, settings), "Memory probe")


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
    done = run_command(argv, **environment(device))
    require(done.returncode == 0, f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    found = SearchResult.load(result)
    rank = found.ranks[0]
    require(0 < found.batch_size < found.most, f"batch_size {found.batch_size}: the data ended before the memory")
    require(rank.peak <= rank.limit, f"{rank.peak >> 20} MiB is more than the limit of {rank.limit >> 20} MiB")
    batch = {"batch_size": found.batch_size, "global_batch_size": found.batch_size, "probe_memory": "on"}
    run = trained(device, place, {**settings, **batch})
    require("Memory probe" not in run.warnings, f"it does not fit: {run.warnings[:300]}")
    return f"batch_size {found.batch_size}: {rank.peak >> 20} of {rank.limit >> 20} MiB"


def memory_sample(device: torch.device, place: Path) -> str:
    """A sample that does not fit is left out with a warning."""
    side = 8192 if device.type == "cuda" else 32
    samples = [{"prompt": "a red circle", "width": side, "height": side, "steps": 1}]
    settings = {"samples": samples, "sample_every": "2 steps", "batch_size": 4, "global_batch_size": 4}
    settings = {**starved(device, "fits_sample:0:700"), **settings}
    return said(trained(device, place, settings), "left out and training continues")


def host_memory(device: torch.device, place: Path) -> str:
    """Main memory of one and of two ranks that start from the same base model."""
    from benchmarks.host_memory import KINDS, peaks  # diffusers, which the other points do without
    from tests.families.tiny_pipelines import fat_sd, tiny_sd

    model = fat_sd(place / "model", 512) if device.type == "cuda" else tiny_sd(place / "model")
    kind = KINDS["LoRA, frozen weights bf16"]
    one, two = (peaks(place, model, ranks, kind)["Anonymous"] for ranks in (1, 2))
    size = sum(file.stat().st_size for file in model.rglob("*.safetensors")) / MIB
    return f"model of {size:.0f} MiB: one rank {one:.0f} MiB, two ranks together {two:.0f} MiB"


POINTS: Mapping[str, Point] = {
    "TF32 and caching": tf32,
    "metric copies": metric_copies,
    "gradients in buckets": bucket_views,
    "optimizers without waiting": optimizers,
    "NVML's GPUs are torch's": nvml_mapping,
    "spawn launcher": spawn_launcher,
    "a failing rank does not hang": failing_rank,
    "out of memory: step": memory_forward,
    "out of memory: last backward, two ranks": memory_last_backward,
    "out of memory: probe": memory_probe,
    "out of memory: sample": memory_sample,
    "largest batch size": memory_search,
    "host memory of two ranks": host_memory,
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


def require(condition: bool, reason: str) -> None:
    """Raise CheckFailed with the reason unless the condition holds."""
    if not condition:
        raise CheckFailed(reason)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The shortest of a few times, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])


def environment(device: torch.device) -> dict[str, str]:
    """The variables of a run's processes: the tests' families are allowed, and a rehearsal sees no GPU."""
    allowed = {trusted_code.VARIABLE: "any"}
    return {**allowed, "CUDA_VISIBLE_DEVICES": ""} if device.type == "cpu" else allowed


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


def trained(device: torch.device, place: Path, settings: Mapping[str, object], *flags: str, ranks: int = 1) -> Run:
    """The run that the real command makes of these settings. Raises CheckFailed if it fails."""
    config = tiny(place, settings)
    done = run_command(
        train_command(config, place / "c.json", *(["--multi_gpu"] if ranks > 1 else []), *flags),
        **environment(device),
    )
    require(done.returncode == 0, f"exit code {done.returncode}: {' '.join(done.stderr.split())[-250:]}")
    return Run(RunFolder(Path(config.runs_dir) / str(config.run_name)))


def said(run: Run, words: str) -> str:
    """The warning of a run that has these words, shortened. Raises CheckFailed without one."""
    found = [line for line in run.warnings.splitlines() if words in line]
    require(bool(found), f"no warning of '{words}'; the warnings are: {run.warnings[:200] or 'none'}")
    return f"{len(run.losses)} steps; {found[0].split('. ')[0][:150]}"


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
