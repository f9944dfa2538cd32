"""What is done between steps: validating, drawing samples, backing up, saving. All of it uses the bare model.

The wrapped model must not be called here: its forward may begin a collective that other ranks do not take part in.
A chore is a row of deeds, such as writing a file. What a deed writes is computed before it, maybe by all ranks; only
rank 0 does the deeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from PIL.Image import Image

from modules.checkpoint import Position
from modules.data.order import StepSamples
from modules.families.family import SampleRequest
from modules.monitoring import Report
from modules.training.assembly import Parts
from modules.training.sampling import Deeds, keep_samples, pictures_of
from modules.training.saving import saving
from modules.training.state import capture
from modules.training.validation import validation_sums


def validate(parts: Parts, steps: list[StepSamples]) -> tuple[float, float]:
    """This rank's sum of the losses over `steps`, and of their weights, with averaged weights where EMA is on."""
    with _bare(parts):
        return validation_sums(parts.family, parts.data.loader, steps, parts.precision, parts.device)


def draw(parts: Parts, requests: Sequence[SampleRequest], report: Report) -> Iterator[Image]:
    """The pictures of the requests, one after the other, with the averaged weights where EMA is on."""

    def drawn(request: SampleRequest) -> Image:
        with _bare(parts), parts.precision.autocast():
            return parts.family.sample(request)

    return pictures_of(drawn, requests, report)


def keep(pictures: Iterable[Image], parts: Parts, position: Position, report: Report) -> Deeds:
    """Write the pictures of all requests. The deeds raise OSError."""
    facts, folder = parts.family.sampling_facts(), parts.folder.samples_dir
    return keep_samples(pictures, parts.requests, facts, folder, position.step, report)


def sample(parts: Parts, position: Position, report: Report) -> Deeds:
    """Draw every requested sample. The deeds raise OSError."""
    return keep(draw(parts, parts.requests, report), parts, position, report)


def back_up(parts: Parts, position: Position, report: Report) -> Deeds:
    """Write a backup and say so. The deed raises OSError."""
    report.phase("saving")
    state = capture(position, parts.weights, parts.ema, parts.step.optimizer, parts.precision.scaler)

    def write() -> None:
        folder = parts.backups.write(state, parts.config.model_dump_json(indent=2))
        report.backup(folder, position.step)

    yield write


def save(parts: Parts, position: Position, report: Report) -> Deeds:
    """Save the model, or what is trained beside it, with the averaged weights where EMA is on. Raises OSError."""
    report.phase("saving")
    with _bare(parts):
        save_now = saving(parts, position)

        def write() -> None:
            written = " and ".join(map(str, save_now()))
            report.note(f"Step {position.step}: the model is saved in {written}.")

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
