"""`python -m app [--config FILE] [--run FOLDER]`: opens the window."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Open the window and stay until it is closed; 2 where there is no display."""
    from app.texts import start as texts

    parser = argparse.ArgumentParser(prog="python -m app", description=texts.ABOUT)
    parser.add_argument("--config", type=Path, metavar="FILE", help=texts.ABOUT_CONFIG)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help=texts.ABOUT_RUN)
    given = parser.parse_args(arguments)
    problem = _no_display()
    if problem:
        print(problem, file=sys.stderr)
        return 2

    faulthandler.enable()  # a crash of Tk or of a library says where it was
    from app.main_window import MainWindow  # only now: it takes a display to be of use

    MainWindow(config_file=given.config, run_folder=given.run).mainloop()
    return 0


def _no_display() -> str:
    """Why no window can be opened; empty where one can."""
    from app.texts import NO_DISPLAY, NO_TK

    try:
        import tkinter as tk
    except ImportError:
        return NO_TK
    if sys.platform not in ("win32", "darwin") and not os.environ.get("DISPLAY"):
        return NO_DISPLAY
    try:
        tk.Tk(className="Tandem").destroy()
    except tk.TclError:
        return NO_DISPLAY
    return ""


if __name__ == "__main__":
    sys.exit(main())
