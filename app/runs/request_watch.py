"""Notices that a run has done what a button asked it for."""

from __future__ import annotations

import time
from typing import Final

from app.runs.control import RunControl
from modules.run.view.run_view import RunView

ASKED: Final = {
    "backup": "Backing up after the current step…",
    "sample": "Generating samples after the current step…",
    "save": "Saving the model after the current step…",
}
DONE: Final = {
    "backup": "Step {step:,} is backed up.",
    "sample": "Samples of step {step:,} are ready: click to see them.",
    "save": "The model of step {step:,} is saved: click to see it.",
}


class RequestWatch:
    """Asked a few times a second."""

    def __init__(self) -> None:
        self._run: RunControl | None = None
        self._since: dict[str, float] = {}  # what is asked for, and since when

    def done(self, run: RunControl | None) -> tuple[str, str]:
        """What the run has done since the last call, and what to say of it; empty for nothing."""
        if run is not self._run:
            self._run, self._since = run, {}
        if run is None:
            return "", ""
        pending = [name for name in ASKED if run.is_pending(name)]
        over = {name: at for name, at in self._since.items() if name not in pending}
        self._since = {name: self._since.get(name, time.time()) for name in pending}
        if not over or not run.is_alive:
            return "", ""
        name, asked_at = next(iter(over.items()))
        with run.view.lock:
            step, warnings = _step_of(name, run.view), list(run.view.warnings)
        if warnings and warnings[-1].time >= asked_at:  # such as that of a full disk
            return "warning", warnings[-1].text
        return name, DONE[name].format(step=step)


def _step_of(name: str, view: RunView) -> int:
    """The step of the newest backup or samples; the run's figures may be some steps late. Take the lock."""
    newest = {"backup": view.backup_step, "sample": view.samples[-1].step if view.samples else None}
    return newest.get(name) or view.position or 0
