"""Follows the system's light or dark mode, polled off the Tk thread."""

from __future__ import annotations

import threading
import tkinter as tk
from collections.abc import Callable

from app.preferences import Preferences

POLL_EVERY_S = 5.0
DELIVER_MS = 500


def follow_system(root: tk.Misc, preferences: Preferences, changed: Callable[[bool], object]) -> Callable[[], None]:
    """Call `changed(is_dark)` now and, in mode "system", at every change. Returns a function that stops it.

    customtkinter would poll 33 times a second on the Tk thread, on Linux by starting a process.
    """
    if preferences.mode != "system":
        changed(preferences.mode == "dark")
        return lambda: None
    ended = threading.Event()
    detected: list[bool] = []

    def poll() -> None:
        while not ended.is_set():
            detected.append(system_is_dark())
            ended.wait(POLL_EVERY_S)

    def deliver() -> None:
        if ended.is_set():
            return
        if detected:
            dark = detected[-1]
            detected.clear()
            if dark != shown[0]:
                shown[0] = dark
                changed(dark)
        root.after(DELIVER_MS, deliver)

    shown = [True]  # until the first poll
    changed(True)
    threading.Thread(target=poll, name="appearance", daemon=True).start()
    root.after(20, deliver)
    return ended.set


def system_is_dark() -> bool:
    """Whether the system prefers dark; True if it does not say."""
    import darkdetect

    try:
        return bool(darkdetect.theme() != "Light")
    except OSError:
        return True
