"""Shows a folder in the system's own file manager."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from app.background import Background
from modules.config import ConfigError
from modules.files import printable

_WAIT_S: Final = 3.0  # xdg-open finds within this time that nothing shows folders; a file manager may stay its child


def show_folder(background: Background, path: Path, failed: Callable[[str], object]) -> None:
    """Open a folder in a thread; `failed` gets one sentence if it cannot be shown."""
    background.run(partial(open_folder, path), lambda _: None, failed)


def open_folder(path: Path) -> None:
    """Open a folder. Waits a few seconds; raises ConfigError if there is none, or nothing that shows folders."""
    shown = printable(path)
    if not path.is_dir():
        raise ConfigError(f"There is no folder {shown}")
    try:
        if sys.platform == "win32":
            os.startfile(path)
            return
        program = "open" if sys.platform == "darwin" else "xdg-open"
        process = subprocess.Popen(
            [program, str(path)],
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
    try:
        code = process.wait(_WAIT_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="file manager", daemon=True).start()  # reaps it
        return
    if code != 0:
        raise ConfigError(f"{program} found no file manager (exit code {code}); open {shown} yourself")
