"""What is said on the terminal."""

from __future__ import annotations

from typing import Final

ABOUT: Final = "The window of Tandem."
ABOUT_CONFIG: Final = "a config file to open"
ABOUT_RUN: Final = "a run to show"
NO_DISPLAY: Final = (
    "There is no display to open the window on. Train without it: python scripts/train.py --config FILE "
    "(--help says more)."
)
NO_TK: Final = (
    "This Python has no Tk, which the window needs: install it (Debian, Ubuntu: apt install python3-tk), or train "
    "without the window: python scripts/train.py --config FILE."
)
