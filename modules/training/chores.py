"""What is done between steps: validating, drawing samples, backing up, saving. All of it uses the bare model.

The wrapped model must not be called here: its forward may begin a collective that other ranks do not take part in.
A chore is a row of deeds, such as writing a file. What a deed writes is computed before it, maybe by all ranks; only
rank 0 does the deeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from PIL.Image import Image

from modules.checkpoint import Position, on_disk, save_model
from modules.data.order import StepSamples
from modules.families.family import SampleRequest
from modules.monitoring import Report
from modules.training.assembly import Parts
from modules.training.sampling import Deeds, draw_samples
from modules.training.state import capture
from modules.training.validation import validation_sums


def validate(parts: Parts, steps: list[StepSamples]) -> tuple[float, float]:
    """This rank's sum of the losses over `steps`, and of their weights, with averaged weights where EMA is on."""
    with _bare(parts):
        return validation_sums(parts.family, parts.data.loader, steps, parts.precision, parts.device)


def sample(parts: Parts, position: Position, report: Report) -> Deeds:
    """Draw every requested sample, with the averaged weights where EMA is on. The deeds raise OSError."""

    def draw(request: SampleRequest) -> Image:
        with _bare(parts), parts.precision.autocast():
            return parts.family.sample(request)

    return draw_samples(draw, parts.requests, parts.folder.samples_dir, position.step, report)


def back_up(parts: Parts, position: Position, report: Report) -> Deeds:
    """Write a backup and say so. The deed raises OSError."""
    report.phase("saving")
    state = capture(position, parts.weights, parts.ema, parts.step.optimizer, parts.precision.scaler)

    def write() -> None:
        folder = parts.backups.write(state, parts.config.model_dump_json(indent=2))
        report.backup(folder, position.step)

    yield write


def save(parts: Parts, position: Position, report: Report) -> Deeds:
    """Save the model as a diffusers folder, with the averaged weights where EMA is on. The deed raises OSError."""
    report.phase("saving")
    folder = parts.folder.model_dir
    with _bare(parts):
        weights = {name: on_disk(tensor) for name, tensor in parts.weights.whole_model().items()}

        def write() -> None:
            save_model(partial(parts.family.export, weights), folder, parts.config, position.step)
            report.note(f"Step {position.step}: the model is saved in {folder}.")

        yield write


def newest_backup(parts: Parts) -> Path | None:
    """The backup to go back to."""
    return parts.backups.newest_valid()[0]


CHORES: dict[str, Callable[[Parts, Position, Report], Deeds]] = {
    "sample": sample,
    "backup": back_up,
    "save": save,
}


@contextmanager
def _bare(parts: Parts) -> Iterator[None]:
    """The family holds the bare module inside the block, with averaged weights where there are some."""
    wrapped, parts.family.model = parts.family.model, parts.weights.model
    try:
        with nullcontext() if parts.ema is None else parts.ema.in_place():
            yield
    finally:
        parts.weights.settle()
        parts.family.model = wrapped
