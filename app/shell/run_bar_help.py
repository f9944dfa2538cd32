"""What the tooltips of the run bar's buttons say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HELP: Final[Mapping[str, tuple[str, str]]] = {  # of the attribute that holds the button: its key, what it does
    "train": ("F5", "Start training with these settings, in a separate process."),
    "enqueue": ("F4", "Add to queue: a copy of these settings waits for the GPUs."),
    "resume": ("Ctrl+F5", "Resume the run {run} from its last backup."),
    "join": ("", "Copy the command that lets another machine join; run it there, in Tandem's folder."),
    "result": ("", "What the run has written, and which programs open it."),
    "stop": ("Shift+F5", "Stop the run after the current step and a backup."),
    "back_up": ("F6", "Save everything needed to resume, now."),
    "sample": ("F7", "Generate sample images with the current model; without sample prompts, asks for one."),
    "save": ("F9", "Save the model as trained so far, in its output format; the run goes on."),
}
_FORCE_STOP: Final = "Stop the run without waiting for a backup."


def help_text(name: str, reason: str, run: str, *, is_stopping: bool) -> str:
    """Of a button: `reason` if it is off, else what it does; and its key. `run` is the followed run's name."""
    key, does = HELP[name]
    if name == "stop" and is_stopping:
        does = _FORCE_STOP
    return f"{reason or does.replace('{run}', run)}{f'  ({key})' if key else ''}"
