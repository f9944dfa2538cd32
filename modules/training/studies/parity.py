"""Parity on a user's own config: several ranks train the same model as one.

Real runs of the real program: one process, one process with accumulation, several processes; the same effective
batch, 20 steps; then their loss curves and final weights are compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modules.checkpoint import Backups, TrainingState, read_backup
from modules.config import Interval, TrainConfig, TrainingError, save_config
from modules.machine import visible_gpus
from modules.run import FINISHED, RunFolder, read_events
from modules.run.launch.plan import TRAIN_SCRIPT
from modules.training.actions import ACTIONS
from modules.training.state.plan import plan_run

STEPS = 20
TOLERANCE = {"fp64": 1e-9, "fp32": 1e-4}  # relative; fp32 sums in another order differ by rounding


@dataclass(frozen=True)
class Variant:
    """One way to compute the same run."""

    name: str
    label: str
    settings: dict[str, object]


@dataclass(frozen=True)
class VariantResult:
    """The losses and the final state of one variant."""

    losses: list[float]
    state: TrainingState


def verify_parity(config: TrainConfig, say: Callable[[str], None]) -> int:
    """Run the comparison and print its table and verdict. Returns 0 if all agree, else 3.

    Raises TrainingError if a run did not finish.
    """
    gpus = len(visible_gpus())
    ranks = config.world_size or max(2, gpus)
    base = comparable(config, ranks)
    if base.precision != config.precision:
        say(f"Note: precision {config.precision} is too coarse to compare; both sides use {base.precision}.")
    on_cpu = ranks > max(1, gpus)
    if on_cpu and gpus:
        say(f"Note: {ranks} ranks on {gpus} GPU: everything runs on the CPU.")
    with tempfile.TemporaryDirectory(prefix="tandem-parity-") as folder:
        outcomes = {}
        for variant in variants(base, ranks):
            say(f"Training {STEPS} steps with {variant.label} ...")
            outcomes[variant.name] = run_variant(base, variant, Path(folder), on_cpu=on_cpu)
        return judge(outcomes, variants(base, ranks), TOLERANCE[base.precision], say)


def comparable(config: TrainConfig, ranks: int) -> TrainConfig:
    """The config for the comparison: the user's own with a fixed effective batch, and nothing but training."""
    return config.model_copy(
        update={
            **{action.every: Interval.never() for action in ACTIONS if action.every},
            "global_batch_size": plan_run(config, ranks).global_batch_size,
            "gradient_accumulation_steps": 1,
            "max_steps": STEPS,
            "epochs": STEPS,
            "precision": config.precision if config.precision in TOLERANCE else "fp32",
            "early_stopping_patience": None,
            "restore_best": False,  # both need validations, of which there are none
            "log_every": Interval(1, "steps"),
            "tensorboard": False,
            "histograms_every": Interval.never(),
            "run_name": None,
        }
    )


def variants(base: TrainConfig, ranks: int) -> list[Variant]:
    """The first is the one that the others are compared with."""
    mode = "fully_sharded" if base.training_mode == "fully_sharded" else "distributed"
    group = {"enable_multi_gpu": True, "training_mode": mode, "world_size": ranks}
    alone = {"enable_multi_gpu": False, "training_mode": "single", "world_size": None}
    smaller = max(1, base.batch_size // 2)
    return [
        Variant("one", "1 process", alone),
        Variant(
            "accumulated",
            f"1 process, micro-batches of {smaller}",
            {**alone, "batch_size": smaller, "gradient_accumulation_steps": 2},
        ),
        Variant("group", f"{ranks} processes" + ", fully sharded" * (mode == "fully_sharded"), group),
    ]


def run_variant(base: TrainConfig, variant: Variant, folder: Path, *, on_cpu: bool) -> VariantResult:
    """Run the real command and read its results. Raises TrainingError with the end of its output if it failed."""
    runs_dir = folder / variant.name
    config = base.model_copy(update={**variant.settings, "runs_dir": str(runs_dir), "run_name": variant.name})
    config_file = folder / f"{variant.name}.json"
    save_config(config, config_file)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""} if on_cpu else dict(os.environ)
    done = subprocess.run(
        [sys.executable, str(TRAIN_SCRIPT), "--config", str(config_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != FINISHED:
        raise TrainingError(
            f"The run with {variant.label} ended with exit code {done.returncode}:\n{done.stdout[-2000:]}"
        )
    run = RunFolder(runs_dir / variant.name)
    losses = [float(str(event["loss"])) for event in read_events(run.events_file) if event["type"] == "step"]
    backup, _ = Backups(run.backup_dir, keep=1).newest_valid()
    assert backup is not None, "a finished run leaves a backup"
    return VariantResult(losses, read_backup(backup))


def judge(
    outcomes: dict[str, VariantResult], compared: list[Variant], tolerance: float, say: Callable[[str], None]
) -> int:
    """Print the differences to the first variant and the verdict; 0 where all are within `tolerance`."""
    first = outcomes[compared[0].name]
    agree = True
    say(f"\n{'compared with ' + compared[0].label:<34} {'steps':>5} {'loss differs by':>17} {'weights differ by':>18}")
    for variant in compared[1:]:
        other = outcomes[variant.name]
        loss, weights = (
            loss_difference(first.losses, other.losses),
            weight_difference(first.state, other.state),
        )
        agree = agree and max(loss, weights) <= tolerance
        say(f"{variant.label:<34} {len(other.losses):>5} {loss:>17.1e} {weights:>18.1e}")
    if agree:
        say(f"\nParity holds: all runs agree to a relative {tolerance:.0e}.")
        return 0
    say(f"\nParity does NOT hold: a difference is above a relative {tolerance:.0e}.")
    if any("running_mean" in name for name in first.state.weights):
        say(
            "The model has BatchNorm, whose result depends on the size of the micro-batch; "
            "use the same batch_size, or GroupNorm."
        )
    return 3


def loss_difference(first: list[float], other: list[float]) -> float:
    """The largest relative difference of two loss curves; infinite if they differ in length."""
    if len(first) != len(other) or not first:
        return float("inf")
    return max(abs(a - b) / max(abs(a), 1e-300) for a, b in zip(first, other, strict=True))


def weight_difference(first: TrainingState, other: TrainingState) -> float:
    """The norm of the difference of all weights, relative to their norm."""
    difference = sum(float((first.weights[n].double() - w.double()).square().sum()) for n, w in other.weights.items())
    size = sum(float(weight.double().square().sum()) for weight in first.weights.values())
    return float((difference / max(size, 1e-300)) ** 0.5)
