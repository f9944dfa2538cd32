"""The facts of a run for its `started` event and for the first lines on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config import TrainConfig
from modules.data.progress import Progress
from modules.distributed import Roster, device_name, roster_lines, roster_warnings
from modules.machine import hostname
from modules.monitoring import RankFigures, Report
from modules.training.adapters import opening as opening_of_method
from modules.training.assembly import Parts
from modules.training.ledger import FIGURES
from modules.training.wishes import Ending


def started_facts(parts: Parts, roster: Roster, backend: str) -> dict[str, object]:
    """What the run is made of, as the `started` event holds it; `devices` and `ranks` have one entry for each rank."""
    return {
        "config": parts.config.model_dump(mode="json"),
        "world": len(roster.rows),
        "backend": backend,
        "host": hostname(),
        "devices": [f"{row.model} on {row.host}" for row in roster.rows],
        "ranks": [row.event() for row in roster.rows],
        "versions": dict(roster.rows[0].versions),
        "trainable_parameters": parts.weights.count,
        "global_batch_size": parts.plan.global_batch_size,
        "steps_per_epoch": parts.data.order.steps_per_epoch,
        "total_steps": parts.total_steps,
        "original_learning_rate": parts.plan.original_learning_rate,
        "learning_rate": parts.plan.learning_rate,
    }


def total_samples(parts: Parts) -> int:
    """Samples of the whole run."""
    epochs, steps = divmod(parts.total_steps, parts.data.order.steps_per_epoch)
    return epochs * parts.data.order.epoch_size + steps * parts.data.order.global_batch_size


def rank_figures(agreed: Mapping[str, float], roster: Roster) -> list[RankFigures]:
    """Each rank's figures of a step, from what all ranks have summed."""
    return [
        RankFigures(row.rank, row.host, **{name: agreed[f"{name}/{row.rank}"] for name in FIGURES})
        for row in roster.rows
    ]


def tell_roster(roster: Roster, config: TrainConfig, report: Report) -> None:
    """The start-up report: what every rank runs on, and what is odd about it."""
    for line in roster_lines(roster):
        report.note(line)
    for text in roster_warnings(roster, config.global_batch_size):
        report.warning(text)


def opening(parts: Parts, world_size: int) -> list[str]:
    """The lines that a person reads before the first step."""
    ranks = "one process" if world_size == 1 else f"{world_size} processes"
    count = parts.weights.count
    trained = f"{count / 1e6:.2f} M" if count >= 10_000 else f"{count:,}"
    lines = [
        f"Training {trained} parameters in {ranks} on {device_name(parts.device)}, "
        f"{parts.config.precision}; effective batch {parts.plan.global_batch_size}, "
        f"{parts.total_steps} steps, {parts.data.order.steps_per_epoch} an epoch."
    ]
    told = opening_of_method(parts.family, parts.config, parts.weights)
    groups = (group.opening(parts.plan.learning_rate) for group in parts.groups)
    more = (told, *groups, _idle(parts), parts.weights.opening(), parts.plan.explanation)
    return [*lines, *(line for line in more if line)]


def _idle(parts: Parts) -> str:
    """A sentence where every part has stopped before the last step begins."""
    order = parts.data.order
    last = Progress(max(0, total_samples(parts) - order.global_batch_size), order.epoch_size, order.global_batch_size)
    idle = bool(parts.groups) and all(group.rests(last) for group in parts.groups)
    return "Note: stop_after ends all parts before the run ends; what comes after that trains nothing." if idle else ""


def farewell(ending: Ending, step: int, folder: str) -> str:
    """The last line on the terminal."""
    sentences = {
        "finished": f"Finished after step {step}. Everything is in {folder}.",
        "early_stopping": f"Ended early at step {step}: validation no longer improves. Everything is in {folder}.",
        "stopped": f"Stopped as asked at step {step}, after a backup. Continue with --resume latest.",
        "interrupted": f"Interrupted at step {step}, after a backup. Continue with --resume latest.",
        "paused": f"Paused at step {step} by SIGUSR1, after a backup. Continue with --resume latest.",
        "terminated": f"Terminated at step {step}, after a backup. Continue with --resume latest.",
    }
    return sentences[ending.reason]
