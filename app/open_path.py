"""Shows a folder in the system's own file manager."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path


def open_folder(path: Path) -> None:
    """Open a folder; raises OSError if there is none, or no program that shows folders."""
    if not path.is_dir():
        raise FileNotFoundError(2, "there is no such folder", str(path))
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
    threading.Thread(target=process.wait, name="file manager", daemon=True).start()  # reaps it
