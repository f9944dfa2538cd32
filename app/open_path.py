"""Shows a folder in the system's own file manager, or a page in its browser, and reports what came of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

from app.state import AppState
from modules.config import ConfigError
from modules.files import printable

_POLL_MS: Final = 200
_WATCHED_S: Final = 60.0  # an opener that still runs then is the file manager or browser itself
_Opener = subprocess.Popen[bytes]
_Kind = Literal["folder", "page"]
_SHOWN_BY: Final[Mapping[_Kind, str]] = {"folder": "file manager", "page": "browser"}


def show_folder(state: AppState, folder: Path, failed: Callable[[str], object]) -> None:
    """Open a folder without blocking; the run bar says how it went, and `failed` gets one sentence if it did not."""
    _show(state, folder, "folder", failed)


def show_page(state: AppState, file: Path, failed: Callable[[str], object]) -> None:
    """Open an HTML file in the browser, as `show_folder` does a folder.

    Not by Python's webbrowser: it calls the program for this a success before it has found no browser.
    """
    _show(state, file, "page", failed)


def _show(state: AppState, path: Path, kind: _Kind, failed: Callable[[str], object]) -> None:
    def refused(reason: str) -> None:
        state.say(reason)
        failed(reason)

    state.say(f"Opening {printable(path)}…")
    watch = partial(_watch, state, path, kind, refused, time.monotonic())
    state.background.run(partial(_start, path, kind), watch, refused)


def _start(path: Path, kind: _Kind) -> _Opener | None:
    """The system's opener, started; None where there is nothing to wait for. Raises ConfigError."""
    shown = printable(path)
    if not (os.path.isfile(path) if kind == "page" else os.path.isdir(path)):
        raise ConfigError(f"There is no {kind} {shown}: it was deleted, renamed or moved")
    try:
        if sys.platform == "win32":
            os.startfile(path)
            return None
        program = "open" if sys.platform == "darwin" else "xdg-open"
        return subprocess.Popen(
            [program, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no program {error.filename}, which shows {kind}s; open {shown} yourself"
        ) from error
    except OSError as error:
        raise ConfigError(f"The {kind} cannot be shown: {error.strerror or error}; open {shown} yourself") from error


def _watch(
    state: AppState, path: Path, kind: _Kind, refused: Callable[[str], object], began: float, opener: _Opener | None
) -> None:
    """Report how the opener ended, however late: on a busy machine it takes long to find that nothing shows folders."""
    code = 0 if opener is None else opener.poll()
    if code is None and opener is not None:
        if time.monotonic() - began < _WATCHED_S:
            state.root.after(_POLL_MS, _watch, state, path, kind, refused, began, opener)
        else:
            threading.Thread(target=opener.wait, name="opener", daemon=True).start()  # reaps it
    elif code == 0:
        state.say(f"Opened {printable(path)}.")
    else:
        # by way of the pool, which drops what is meant for a page that is gone
        state.background.run(partial(_raise_ended, path, kind, code), lambda _: None, refused)


def _raise_ended(path: Path, kind: _Kind, code: int | None) -> None:
    raise ConfigError(f"No {_SHOWN_BY[kind]} could be opened (exit code {code}); open {printable(path)} yourself")
