"""Saves and restores the window's size and position."""

from __future__ import annotations

import re
import sys
import tkinter as tk

from app.preferences import Preferences
from app.widgets.later import later
from app.widgets.own_events import bind_own

DEFAULT_SIZE = (1280, 800)
_BESIDE = 40  # pixels by which a second window is moved
FRAME_MS = 100  # after which the window manager has added its frame
_GEOMETRY = re.compile(r"(\d{2,5})x(\d{2,5})\+(-?\d{1,5})\+(-?\d{1,5})")


class WindowGeometry:
    """Restores the saved size and position if they still fit the screen."""

    def __init__(
        self, window: tk.Tk, preferences: Preferences, smallest: tuple[int, int], *, is_second: bool = False
    ) -> None:
        self._window = window
        self._preferences = preferences
        screen = (window.winfo_screenwidth(), window.winfo_screenheight())
        tk.Wm.wm_minsize(window, min(smallest[0], screen[0]), min(smallest[1], screen[1]))
        saved = _beside(preferences.geometry) if is_second else preferences.geometry
        tk.Wm.wm_geometry(window, usable_geometry(saved, screen, smallest))
        if preferences.maximised:
            _maximise(window)
        else:
            bind_own(window, "<Map>", lambda: later(window, FRAME_MS, self._fit_with_frame))

    def _fit_with_frame(self) -> None:
        """Make the window smaller if it is larger than the screen with the frame that the window manager has added."""
        window = self._window
        found = _GEOMETRY.fullmatch(tk.Wm.wm_geometry(window))  # whose place is that of the frame
        if found is None or _is_maximised(window):
            return
        width, height, x, y = (int(part) for part in found.groups())
        border, title = window.winfo_rootx() - x, window.winfo_rooty() - y
        widest, highest = window.winfo_screenwidth() - 2 * border, window.winfo_screenheight() - title - border
        if width > widest or height > highest:
            width, height = min(width, widest), min(height, highest)
            x, y = max(min(x, widest - width), 0), max(min(y, highest - height), 0)
            tk.Wm.wm_geometry(window, f"{width}x{height}+{x}+{y}")

    def save(self) -> None:
        """Save the current size and position."""
        maximised = _is_maximised(self._window)
        self._preferences.maximised = maximised
        if not maximised and self._window.winfo_viewable():
            self._preferences.geometry = tk.Wm.wm_geometry(self._window)


def usable_geometry(saved: str, screen: tuple[int, int], smallest: tuple[int, int]) -> str:
    """The saved geometry if it is on the screen, else the default size, centred."""
    found = _GEOMETRY.fullmatch(saved)
    if found:
        width, height, x, y = (int(part) for part in found.groups())
        width, height = min(max(width, smallest[0]), screen[0]), min(max(height, smallest[1]), screen[1])
        if -width / 2 < x < screen[0] - 100 and -20 <= y < screen[1] - 60:
            return f"{width}x{height}+{x}+{y}"
    width, height = min(DEFAULT_SIZE[0], screen[0]), min(DEFAULT_SIZE[1], screen[1])
    return f"{width}x{height}+{(screen[0] - width) // 2}+{(screen[1] - height) // 2}"


def _beside(saved: str) -> str:
    """A geometry that does not cover the window that has this one."""
    found = _GEOMETRY.fullmatch(saved)
    if found is None:
        return saved
    width, height, x, y = map(int, found.groups())
    return f"{width}x{height}+{x + _BESIDE}+{y + _BESIDE}"


def _maximise(window: tk.Tk) -> None:
    if sys.platform in ("win32", "darwin"):
        window.state("zoomed")
    else:
        tk.Wm.wm_attributes(window, "-zoomed", True)


def _is_maximised(window: tk.Tk) -> bool:
    if sys.platform in ("win32", "darwin"):
        return bool(window.state() == "zoomed")
    return bool(tk.Wm.wm_attributes(window, "-zoomed"))
