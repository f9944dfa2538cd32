"""What scripts/gpu_check.py tries: tiny runs in every mode, each with its evaluation, and points that only a GPU can
settle. Imports neither torch nor pydantic: `--plan` reads it where neither is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.runs import Run

ROOT = Path(__file__).resolve().parents[1]
ADAPTERS = str(ROOT / "tests" / "adapter_family.py")
GLOBAL_BATCH = 8
EXACT, CLOSE, ROUGH = 1e-9, 1e-3, 0.05  # relative differences of losses and weights
LOW_RANK: dict[str, object] = {"gradient_compression": "powersgd", "powersgd_start_step": 2}
SHARDED: dict[str, object] = {"training_mode": "fully_sharded"}
BATCH_NORM: dict[str, object] = {
    "family_options": {"batch_norm": True},
    "aspect_ratio_bucketing": False,  # so that all ranks together normalise over the samples of one process
    "drop_last": True,
    # the bias in front of the norm has a gradient of rounding errors alone, which Adam makes as large as any other
    "precision": "fp64",
}
ONLY_ON_GPU = "not on the CPU"  # begins the outcome of what a CPU cannot check
MIB = 1 << 20
ANSWER = "answer.txt"  # in the folder of an order: its outcome
STATEFUL: dict[str, object] = {"family_options": {"dropout": 0.2}, "ema": True, "max_steps": 8}


class CheckFailed(Exception):
    """Why a check failed."""


def require(condition: bool, reason: str) -> None:
    """Raise CheckFailed with the reason unless the condition holds."""
    if not condition:
        raise CheckFailed(reason)


Runs = Mapping[str, "Run"]


@dataclass(frozen=True)
class Order:
    """What a process is to do: call `function` ("module:name") with the device, the folder `place`, and `more`."""

    function: str
    place: str
    more: Mapping[str, object]
    answers: bool  # whether it writes down what the function returns


@dataclass(frozen=True)
class Limits:
    """How long a cell takes on an H100, about, and after how long it is killed; without the start of its processes."""

    typical_s: float
    limit_s: float


OF_A_CHECK = Limits(5, 120)


@dataclass(frozen=True)
class Check:
    """Settings by job; `evaluate` describes the result, given the layout's runs and those of one process."""

    name: str
    jobs: Mapping[str, Mapping[str, object]]
    evaluate: Callable[[Runs, Runs], str]


@dataclass(frozen=True)
class Point:
    """`function` ("module:name") gets "cuda" or "cpu" and an empty folder, and returns the figures."""

    function: str
    limits: Limits


FIRST = {"the demo": Point("scripts.gpu_run_points:demo", Limits(60, 240))}
# cheap ones first
POINTS = {
    "NVML's GPUs are torch's": Point("scripts.gpu_device_points:nvml_mapping", Limits(3, 60)),
    "metric copies": Point("scripts.gpu_device_points:metric_copies", Limits(5, 60)),
    "gradients in buckets": Point("scripts.gpu_device_points:bucket_views", Limits(5, 60)),
    "blocks in host memory": Point("scripts.gpu_device_points:block_offload", Limits(10, 120)),
    "TF32 and caching": Point("scripts.gpu_device_points:tf32", Limits(15, 120)),
    "optimizers without waiting": Point("scripts.gpu_device_points:optimizers", Limits(15, 120)),
    "modules.library": Point("scripts.gpu_run_points:library", Limits(40, 180)),
    "spawn launcher": Point("scripts.gpu_run_points:spawn_launcher", Limits(30, 150)),
    "a failing rank does not hang": Point("scripts.gpu_run_points:failing_rank", Limits(30, 150)),
    "out of memory: step": Point("scripts.gpu_run_points:memory_forward", Limits(30, 150)),
    "out of memory: last backward, two ranks": Point("scripts.gpu_run_points:memory_last_backward", Limits(30, 150)),
    "out of memory: probe": Point("scripts.gpu_run_points:memory_probe", Limits(30, 150)),
    "out of memory: sample": Point("scripts.gpu_run_points:memory_sample", Limits(30, 150)),
    "largest batch size": Point("scripts.gpu_run_points:memory_search", Limits(90, 300)),
    "host memory of two ranks": Point("scripts.gpu_run_points:host_memory", Limits(120, 400)),
}

# Single-process runs that the others are compared with.
SINGLE_PROCESS: dict[str, dict[str, object]] = {
    "plain": {},
    "fp64": {"precision": "fp64"},
    "adapters": {"family": ADAPTERS},
    "batch norm": {**BATCH_NORM, "batch_size": GLOBAL_BATCH},
}


def matches(alone: str, tolerance: float, job: str = "run") -> Callable[[Runs, Runs], str]:
    """The run equals that of one process, to a relative tolerance."""

    def evaluate(runs: Runs, reference: Runs) -> str:
        from modules.training.studies.parity import loss_difference, weight_difference

        one, run = reference[alone], runs[job]
        difference = max(loss_difference(one.losses, run.losses), weight_difference(one.state, run.state))
        if not difference <= tolerance:
            raise CheckFailed(f"differs from one process by {difference:.0e}, more than {tolerance:.0e}")
        return f"differs by {difference:.0e}"

    return evaluate


def loss_falls(runs: Runs, reference: Runs) -> str:
    """The loss falls."""
    first, *_, last = runs["run"].losses
    if not last < first:
        raise CheckFailed(f"the loss went from {first:.3f} to {last:.3f}")
    return f"loss {first:.2f} to {last:.2f}"


def recovers_from_oom(runs: Runs, reference: Runs) -> str:
    """One step was skipped and the run continued with smaller micro-batches."""
    skipped = sum(math.isnan(loss) or math.isinf(loss) for loss in runs["run"].losses)
    if "every rank skipped step" not in runs["run"].warnings:
        raise CheckFailed("no warning was logged")
    return f"{skipped} step skipped" if skipped else "warned and continued"


def resumes_exactly(runs: Runs, reference: Runs) -> str:
    """A run that was stopped and resumed equals an uninterrupted one."""
    from modules.training.studies.parity import weight_difference
    from tests.runs import same_state

    whole, resumed = runs["whole"].state, runs["resumed"].state
    if same_state(whole, resumed):
        return "bit-identical"
    difference = weight_difference(whole, resumed)
    if not difference <= CLOSE:
        raise CheckFailed(f"the resumed run differs by {difference:.0e}")
    return f"differs by {difference:.0e} (nondeterministic GPU kernels)"


def checks(ranks: int) -> list[Check]:
    """All checks with `ranks` processes."""

    def one(name: str, evaluate: Callable[[Runs, Runs], str], **settings: object) -> Check:
        return Check(name, {"run": settings}, evaluate)

    out_of_memory = {"faults": [f"out_of_memory:{ranks - 1}:5"]}
    resume = {"whole": STATEFUL, "half": {**STATEFUL, "max_steps": 4}, "resumed": STATEFUL}
    return [
        one("DDP", matches("plain", CLOSE)),
        one("DDP, fp64: parity with one process", matches("fp64", EXACT), precision="fp64"),
        one("accumulation", matches("fp64", EXACT), precision="fp64", batch_size=1, gradient_accumulation_steps=2),
        one("static graph", matches("plain", CLOSE), static_graph=True),
        one("adapters in one bucket", matches("adapters", CLOSE), family=ADAPTERS),
        one("fully sharded (FSDP2)", matches("plain", CLOSE), **SHARDED),
        one("fully sharded, CPU offload", matches("plain", CLOSE), **SHARDED, fsdp_cpu_offload=True),
        one("fully sharded, bf16", loss_falls, **SHARDED, precision="bf16"),
        one("fp16 gradient compression", matches("plain", ROUGH), gradient_compression="fp16"),
        one("bf16 gradient compression", matches("plain", ROUGH), gradient_compression="bf16"),
        one("PowerSGD", loss_falls, **LOW_RANK),
        one(
            "sync_batch_norm",
            matches("batch norm", CLOSE),
            **BATCH_NORM,
            sync_batch_norm=True,
            batch_size=math.ceil(GLOBAL_BATCH / ranks),
        ),
        one("mixed precision, bf16", loss_falls, precision="bf16"),
        one("mixed precision, fp16", loss_falls, precision="fp16"),
        one("out of memory on one rank", recovers_from_oom, family_options=out_of_memory, max_steps=10),
        Check("resume", resume, resumes_exactly),
    ]
