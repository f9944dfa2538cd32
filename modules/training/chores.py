"""What is done between steps: validating, drawing samples, backing up, saving. All of it uses the bare model.

The wrapped model must not be called here: its forward may begin a collective that other ranks do not take part in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from modules.checkpoint import Position, on_disk, save_model
from modules.data.order import StepSamples
from modules.monitoring import Report
from modules.training.assembly import Parts
from modules.training.sampling import draw_samples
from modules.training.state import capture
from modules.training.validation import validation_sums


def validate(parts: Parts, steps: list[StepSamples]) -> tuple[float, float]:
    """This rank's sum of the losses over `steps`, and of their weights, with averaged weights where EMA is on."""
    with _bare(parts):
        return validation_sums(parts.family, parts.data.loader, steps, parts.precision, parts.device)


def sample(parts: Parts, position: Position, report: Report) -> None:
    """Draw every requested sample, with the averaged weights where EMA is on. Raises OSError."""
    if parts.requests:
        with _bare(parts), parts.precision.autocast():
            draw_samples(parts.family, parts.requests, parts.folder.samples_dir, position.step, report)


def back_up(parts: Parts, position: Position, report: Report) -> None:
    """Write a backup and say so. Raises OSError."""
    report.phase("saving")
    state = capture(position, parts.model, parts.ema, parts.step.optimizer, parts.precision.scaler)
    folder = parts.backups.write(state, parts.config.model_dump_json(indent=2))
    report.backup(folder, position.step)


def save(parts: Parts, position: Position, report: Report) -> None:
    """Save the model as a diffusers folder, with the averaged weights where EMA is on. Raises OSError."""
    report.phase("saving")
    folder = parts.folder.model_dir
    with _bare(parts):
        weights = {name: on_disk(tensor) for name, tensor in parts.model.state_dict().items()}
        save_model(lambda target: parts.family.export(weights, target), folder, parts.config, position.step)
    report.note(f"Step {position.step}: the model is saved in {folder}.")


def newest_backup(parts: Parts) -> Path | None:
    """The backup to go back to."""
    return parts.backups.newest_valid()[0]


CHORES: dict[str, Callable[[Parts, Position, Report], None]] = {
    "sample": sample,
    "backup": back_up,
    "save": save,
}


@contextmanager
def _bare(parts: Parts) -> Iterator[None]:
    """The family holds the bare module inside the block, with averaged weights where there are some."""
    wrapped, parts.family.model = parts.family.model, parts.model
    try:
        if parts.ema is None:
            yield
        else:
            with parts.ema.in_place():
                yield
    finally:
        parts.family.model = wrapped
