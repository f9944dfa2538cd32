"""What scripts/gpu_check.py tries: the settings of each tiny run, and how its outcome is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modules.training.parity import loss_difference, weight_difference
from tests.runs import ROOT, Run, same_state

ADAPTERS = str(ROOT / "tests" / "adapter_family.py")
GLOBAL_BATCH = 8
EXACTLY, NEARLY, ROUGHLY = 1e-9, 1e-3, 0.05  # relative differences of losses and weights
LOW_RANK: dict[str, object] = {"gradient_compression": "powersgd", "powersgd_start_step": 2}
SHARDED: dict[str, object] = {"training_mode": "fully_sharded"}
BATCH_NORM: dict[str, object] = {
    "family_options": {"batch_norm": True},
    "aspect_ratio_bucketing": False,  # so that all ranks together see what one process sees
    "drop_last": True,
}
TOUCHY: dict[str, object] = {"family_options": {"dropout": 0.2}, "ema": True, "max_steps": 8}


class Fault(Exception):
    """Why a check has failed."""


Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Check:
    """`settings` by job; `judge` says how good it is, given the layout's runs and those of one process."""

    name: str
    jobs: Mapping[str, Mapping[str, object]]
    judge: Callable[[Runs, Runs], str]


# The runs of one process that others are compared with.
ALONE: dict[str, dict[str, object]] = {
    "plain": {},
    "fp64": {"precision": "fp64"},
    "adapters": {"family": ADAPTERS},
    "batch norm": {**BATCH_NORM, "batch_size": GLOBAL_BATCH},
}


def same_as(alone: str, tolerance: float, job: str = "run") -> Callable[[Runs, Runs], str]:
    """A judge: the run is that of one process."""

    def judge(runs: Runs, reference: Runs) -> str:
        one, run = reference[alone], runs[job]
        apart = max(loss_difference(one.losses, run.losses), weight_difference(one.state, run.state))
        if not apart <= tolerance:
            raise Fault(f"differs from one process by {apart:.0e}, more than {tolerance:.0e}")
        return f"differs by {apart:.0e}"

    return judge


def learns(runs: Runs, reference: Runs) -> str:
    """A judge: the loss falls."""
    first, *_, last = runs["run"].losses
    if not last < first:
        raise Fault(f"the loss went from {first:.3f} to {last:.3f}")
    return f"loss {first:.2f} to {last:.2f}"


def survives(runs: Runs, reference: Runs) -> str:
    """A judge: one step was passed over with smaller micro-batches after it."""
    passed_over = sum(math.isnan(loss) or math.isinf(loss) for loss in runs["run"].losses)
    if "Out of memory: the step was passed over" not in runs["run"].warnings:
        raise Fault("nothing was said of it")
    return f"{passed_over} step passed over" if passed_over else "told, and went on"


def resumes(runs: Runs, reference: Runs) -> str:
    """A judge: stopped and continued is as if never stopped."""
    whole, resumed = runs["whole"].state, runs["resumed"].state
    if same_state(whole, resumed):
        return "the same bits"
    apart = weight_difference(whole, resumed)
    if not apart <= NEARLY:
        raise Fault(f"the resumed run differs by {apart:.0e}")
    return f"differs by {apart:.0e} (GPU kernels that add up in no fixed order)"


def checks(ranks: int) -> list[Check]:
    """Everything that is tried with `ranks` processes."""

    def one(name: str, judge: Callable[[Runs, Runs], str], **settings: object) -> Check:
        return Check(name, {"run": settings}, judge)

    out_of_memory = {"faults": [f"out_of_memory:{ranks - 1}:5"]}
    resume = {"whole": TOUCHY, "half": {**TOUCHY, "max_steps": 4}, "resumed": TOUCHY}
    return [
        one("DDP", same_as("plain", NEARLY)),
        one("DDP, fp64: parity with one process", same_as("fp64", EXACTLY), precision="fp64"),
        one("accumulation", same_as("fp64", EXACTLY), precision="fp64", batch_size=1, gradient_accumulation_steps=2),
        one("static graph", same_as("plain", NEARLY), static_graph=True),
        one("adapters in one bucket", same_as("adapters", NEARLY), family=ADAPTERS),
        one("fully sharded (FSDP2)", same_as("plain", NEARLY), **SHARDED),
        one("fully sharded, weights in main memory", same_as("plain", NEARLY), **SHARDED, fsdp_cpu_offload=True),
        one("fully sharded, bf16", learns, **SHARDED, precision="bf16"),
        one("fp16 exchange", same_as("plain", ROUGHLY), gradient_compression="fp16"),
        one("bf16 exchange", same_as("plain", ROUGHLY), gradient_compression="bf16"),
        one("PowerSGD exchange", learns, **LOW_RANK),
        one(
            "sync_batch_norm",
            same_as("batch norm", NEARLY),
            **BATCH_NORM,
            sync_batch_norm=True,
            batch_size=math.ceil(GLOBAL_BATCH / ranks),
        ),
        one("mixed precision, bf16", learns, precision="bf16"),
        one("mixed precision, fp16", learns, precision="fp16"),
        one("out of memory on one rank", survives, family_options=out_of_memory, max_steps=10),
        Check("resume", resume, resumes),
    ]
