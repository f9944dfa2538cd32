"""Runs that a command line or another window starts while this one is open."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from app.runs.liveness import read_liveness
from app.state import AppState
from modules.run import RunFolder

_EVERY_S: Final = 10.0  # rarely, because each time an idle window wakes
_BEFORE_S: Final = 60.0  # a run may have changed its folder so long before it is seen


class OutsideWatch:
    """Follows such a run of the settings' folder if none is followed, or offers it once the followed one has ended."""

    def __init__(self, state: AppState, follow: Callable[[Path], object]) -> None:
        self._state, self._follow = state, follow
        self._is_looking = False
        self._looked_at = time.monotonic()
        self._since = time.time()
        self._known: set[Path] = set()  # each run is followed or offered once

    def refresh(self) -> None:
        """Look in a thread if it is time and no run is active."""
        run = self._state.run
        if run is not None:
            self._known.add(run.folder.path.absolute())
        if self._is_looking or time.monotonic() - self._looked_at < _EVERY_S or (run is not None and run.is_alive):
            return
        self._is_looking, since, runs_dir = True, self._since - _BEFORE_S, self._state.runs_dir
        self._since = time.time()
        self._state.background.run(lambda: started_since(runs_dir, since), self._looked)

    def _looked(self, found: list[Path]) -> None:
        self._is_looking, self._looked_at = False, time.monotonic()
        new, run = [path for path in found if path not in self._known], self._state.run
        if not new or (run is not None and run.is_alive):
            return
        self._known.update(new)
        follow = partial(self._follow, new[0])
        if run is None:
            follow()
            self._state.say(f"Following {new[0].name}, which was started elsewhere.")
        else:
            self._state.say(f"{new[0].name} was started elsewhere: click to follow it.", follow)


def started_since(runs_dir: Path, since: float) -> list[Path]:
    """The active runs whose folders have changed since then, the newest first."""
    changed: list[tuple[float, Path]] = []
    try:
        with os.scandir(runs_dir) as entries:
            for entry in entries:
                if entry.is_dir() and entry.stat().st_mtime >= since:
                    changed.append((entry.stat().st_mtime, Path(entry.path).absolute()))
    except OSError:
        return []
    return [path for _, path in sorted(changed, reverse=True) if read_liveness(RunFolder(path)).is_alive]
