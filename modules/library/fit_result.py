"""What a run has brought: its folder, its figures, and the trained weights for the program's own model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import nn

from modules.checkpoint import Backups, read_backup
from modules.checkpoint.formats.safetensors_file import SafetensorsFile
from modules.config import TrainingError
from modules.config.sections.training import better_direction
from modules.library.unwrap import unwrapped
from modules.run import Event, RunFolder, read_events

WEIGHTS = "model.safetensors"
_OF_THE_RUN = {"started", "phase", "step", "finished"}


@dataclass(frozen=True)
class FitResult:
    """How `Trainer.fit` ended.

    `reason` is "finished", "early_stopping", or, after which `fit(resume=True)` continues, "stopped", "interrupted",
    "terminated" or "paused". `metrics` are the last figures and `best` the best ones of all validations, by name:
    train_loss, validation_loss, validation_accuracy, test_loss, ... `losses` are those of the steps, `validations` the
    figures of each validation and test, by step. On another machine that does not see the run folder all is empty.
    """

    folder: Path
    reason: str
    step: int
    metrics: Mapping[str, float]
    best: Mapping[str, float]
    losses: Mapping[int, float]
    validations: Mapping[int, Mapping[str, float]]
    model_path: Path | None  # the folder of the saved model; None if the run did not come to its end

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to train."""
        return self.reason in {"finished", "early_stopping"}


def read_result(folder: RunFolder) -> FitResult:
    """The result of the run in `folder`, from its events; an empty one on a machine that does not see the folder.

    Raises TrainingError if the run has ended without saying how.
    """
    events = read_events(folder.events_file)
    last = next((str(event["type"]) for event in reversed(events) if event["type"] in _OF_THE_RUN), "finished")
    if last != "finished":
        raise TrainingError("the processes ended in the middle of the run, without an error", f"See {folder.log_dir}")
    losses = {cast(int, e["step"]): cast(float, e["loss"]) for e in events if e["type"] == "step" and e["loss"]}
    validations: dict[int, dict[str, float]] = {}
    for event in events:
        if event["type"] == "validation":
            validations.setdefault(cast(int, event["step"]), {}).update(_figures(event))
    metrics = {"train_loss": losses[max(losses)]} if losses else {}
    for figures in validations.values():
        metrics |= figures
    finished = [str(event["reason"]) for event in events if event["type"] == "finished"]
    reason = finished[-1] if finished else ""
    model = folder.model_dir if (folder.model_dir / WEIGHTS).is_file() else None
    return FitResult(
        folder=folder.path,
        reason=reason,
        step=max(losses, default=0),
        metrics=metrics,
        best=_best(each for figures in validations.values() for each in figures.items()),
        losses=losses,
        validations=validations,
        model_path=model if reason in {"finished", "early_stopping"} else None,
    )


def load_trained(model: nn.Module, result: FitResult) -> None:
    """Load what was trained into `model`, wherever its weights are.

    That is the saved model, with the averaged weights (EMA) or the best ones if the run keeps them; of a run that did
    not come to its end, the newest backup. Without either, as on another machine without the run folder, `model` stays.
    """
    bare = unwrapped(model)
    if result.model_path is not None:
        with SafetensorsFile(result.model_path / WEIGHTS) as file:
            bare.load_state_dict({name: file.read(name) for name in file.names})
        return
    newest, _ = Backups(RunFolder(result.folder).backup_dir, keep=1).newest_valid()
    if newest is not None:
        state = read_backup(newest)
        bare.load_state_dict({**state.weights, **(state.ema or {})}, strict=False)  # frozen weights are in no backup


def _figures(event: Event) -> Iterable[tuple[str, float]]:
    """Of a validation or test: its loss and metrics, named after it."""
    more = cast("Mapping[str, float]", event.get("metrics") or {})
    for name, value in {"loss": event["loss"], **more}.items():
        if isinstance(value, int | float):
            yield f"{event['set']}_{name}", float(value)


def _best(figures: Iterable[tuple[str, float]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for name, value in figures:
        direction = better_direction(name, "auto")
        if name.startswith("validation_") and direction:
            choose = max if direction == "max" else min
            best[name] = choose(value, best.get(name, value))
    return best
