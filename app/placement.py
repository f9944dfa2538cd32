"""Where the window was and how large, kept from one day to the next."""

from __future__ import annotations

import re
import sys
import tkinter as tk

from app.preferences import Preferences

USUAL = (1280, 800)
_GEOMETRY = re.compile(r"(\d{2,5})x(\d{2,5})\+(-?\d{1,5})\+(-?\d{1,5})")


class Placement:
    """Restores size and place, if they still fit the screen."""

    def __init__(self, window: tk.Tk, preferences: Preferences, smallest: tuple[int, int]) -> None:
        self._window = window
        self._preferences = preferences
        screen = (window.winfo_screenwidth(), window.winfo_screenheight())
        tk.Wm.wm_minsize(window, min(smallest[0], screen[0]), min(smallest[1], screen[1]))
        tk.Wm.wm_geometry(window, fitting(preferences.geometry, screen, smallest))
        if preferences.maximised:
            _maximise(window)

    def keep(self) -> None:
        """Remember the present place."""
        maximised = _is_maximised(self._window)
        self._preferences.maximised = maximised
        if not maximised and self._window.winfo_viewable():
            self._preferences.geometry = tk.Wm.wm_geometry(self._window)


def fitting(kept: str, screen: tuple[int, int], smallest: tuple[int, int]) -> str:
    """The kept size and place where the screen still has it, else the usual size in the middle."""
    found = _GEOMETRY.fullmatch(kept)
    if found:
        width, height, x, y = (int(part) for part in found.groups())
        width, height = min(max(width, smallest[0]), screen[0]), min(max(height, smallest[1]), screen[1])
        if -width / 2 < x < screen[0] - 100 and -20 <= y < screen[1] - 60:
            return f"{width}x{height}+{x}+{y}"
    width, height = min(USUAL[0], screen[0]), min(USUAL[1], screen[1])
    return f"{width}x{height}+{(screen[0] - width) // 2}+{(screen[1] - height) // 2}"


def _maximise(window: tk.Tk) -> None:
    if sys.platform in ("win32", "darwin"):
        window.state("zoomed")
    else:
        tk.Wm.wm_attributes(window, "-zoomed", True)


def _is_maximised(window: tk.Tk) -> bool:
    if sys.platform in ("win32", "darwin"):
        return bool(window.state() == "zoomed")
    return bool(tk.Wm.wm_attributes(window, "-zoomed"))
