"""Shows a folder in the system's own file manager, and reports what came of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from app.state import AppState
from modules.config import ConfigError
from modules.files import printable

_POLL_MS: Final = 200
_WATCHED_S: Final = 60.0  # an opener that still runs then is the file manager itself
_Opener = subprocess.Popen[bytes]


def show_folder(state: AppState, folder: Path, failed: Callable[[str], object]) -> None:
    """Open a folder without blocking; the run bar says how it went, and `failed` gets one sentence if it did not."""

    def refused(reason: str) -> None:
        state.say(reason)
        failed(reason)

    state.say(f"Opening {printable(folder)}…")
    state.background.run(partial(_start, folder), partial(_watch, state, folder, refused, time.monotonic()), refused)


def _start(folder: Path) -> _Opener | None:
    """The system's opener, started; None where there is nothing to wait for. Raises ConfigError."""
    shown = printable(folder)
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {shown}: it was deleted, renamed or moved")
    try:
        if sys.platform == "win32":
            os.startfile(folder)
            return None
        program = "open" if sys.platform == "darwin" else "xdg-open"
        return subprocess.Popen(
            [program, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no program {error.filename}, which shows folders; open {shown} yourself"
        ) from error
    except OSError as error:
        raise ConfigError(f"The folder cannot be shown: {error.strerror or error}; open {shown} yourself") from error


def _watch(
    state: AppState, folder: Path, refused: Callable[[str], object], began: float, opener: _Opener | None
) -> None:
    """Report how the opener ended, however late: on a busy machine it takes long to find that nothing shows folders."""
    code = 0 if opener is None else opener.poll()
    if code is None and opener is not None:
        if time.monotonic() - began < _WATCHED_S:
            state.root.after(_POLL_MS, _watch, state, folder, refused, began, opener)
        else:
            threading.Thread(target=opener.wait, name="file manager", daemon=True).start()  # reaps it
    elif code == 0:
        state.say(f"Opened {printable(folder)}.")
    else:
        # by way of the pool, which drops what is meant for a page that is gone
        state.background.run(partial(_raise_ended, folder, code), lambda _: None, refused)


def _raise_ended(folder: Path, code: int | None) -> None:
    shown = printable(folder)
    raise ConfigError(f"No file manager could be opened (exit code {code}); open {shown} yourself")
