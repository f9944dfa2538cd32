"""Light or dark as the system is, looked up now and then off the Tk thread."""

from __future__ import annotations

import threading
import tkinter as tk
from collections.abc import Callable

from app.preferences import Preferences

LOOK_EVERY_S = 5.0
HAND_OVER_MS = 500


def follow_system(root: tk.Misc, preferences: Preferences, changed: Callable[[bool], object]) -> Callable[[], None]:
    """Call `changed` now, and later whenever the system changes, if it is to be followed; returns how to end it.

    customtkinter would ask the system 33 times a second on the Tk thread, on Linux by starting a program.
    """
    if preferences.mode != "system":
        changed(preferences.mode == "dark")
        return lambda: None
    ended = threading.Event()
    told: list[bool] = []

    def ask() -> None:
        while not ended.is_set():
            told.append(system_is_dark())
            ended.wait(LOOK_EVERY_S)

    def hand_over() -> None:
        if ended.is_set():
            return
        if told:
            dark = told[-1]
            told.clear()
            if dark != shown[0]:
                shown[0] = dark
                changed(dark)
        root.after(HAND_OVER_MS, hand_over)

    shown = [True]  # until the system has answered
    changed(True)
    threading.Thread(target=ask, name="appearance", daemon=True).start()
    root.after(20, hand_over)
    return ended.set


def system_is_dark() -> bool:
    """Whether the system prefers dark; dark where it does not say."""
    import darkdetect

    try:
        return bool(darkdetect.theme() != "Light")
    except OSError:
        return True
