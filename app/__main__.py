"""`python -m app [--config FILE] [--run FOLDER]`: opens the window.

With a file, relative paths start in the current folder, otherwise in that of the user's files, if one is chosen.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from modules import __version__
from modules.config import ConfigError
from modules.config.file_access import set_file_access

WITHOUT_WINDOW = "To train without the window: python scripts/train.py --config FILE"


def main(arguments: Sequence[str] | None = None) -> int:
    """Open the window and run it until it is closed; return 2 if there is no display."""
    parser = argparse.ArgumentParser(prog="tandem", description="Open the Tandem window.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="config file to open")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run folder to show")
    parser.add_argument("--version", action="version", version=f"Tandem {__version__}")
    given = parser.parse_args(arguments)
    if [] in (given.config, given.run):  # what argparse before Python 3.12.7 makes of --config=--
        parser.error("'--' is no value for --config or --run")
    try:
        set_file_access()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    problem = _no_display()
    if problem:
        print(problem, file=sys.stderr)
        return 2

    faulthandler.enable()  # prints a traceback if Tk or a library crashes
    from app.home import enter_home
    from app.main_window import MainWindow  # only now: importing it needs a display
    from app.preferences import Preferences
    from app.shell.ask import Choice, ask

    preferences, run = Preferences.load(), given.run and given.run.absolute()
    problem = "" if given.config or (run and not preferences.home) else enter_home(preferences)
    window = MainWindow(given.config, run, keeps_session=True)
    if problem:
        close = Choice("", "Close", "accent")
        window.after_idle(ask, window, "The folder of your files", problem, (close,), lambda answer: None)
    window.mainloop()
    return 0


def _no_display() -> str:
    """Return why no window can be opened, or an empty string."""
    try:
        import tkinter as tk
    except ImportError:
        return f"This Python has no Tk, which the window needs: apt install python3-tk. {WITHOUT_WINDOW}"
    if sys.platform not in ("win32", "darwin") and not os.environ.get("DISPLAY"):
        return f"No display found. {WITHOUT_WINDOW}"
    try:
        tk.Tk(className="Tandem").destroy()
    except tk.TclError:
        return f"No display found. {WITHOUT_WINDOW}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
