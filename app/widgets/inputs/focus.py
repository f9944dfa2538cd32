"""Keyboard focus and key bindings for controls drawn on canvases."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable


def handler(action: Callable[[], object]) -> Callable[[object], str]:
    """An event handler that calls `action` and stops the event."""

    def handle(event: object) -> str:
        action()
        return "break"

    return handle


def make_focusable(canvas: tk.Misc, ring: Callable[[bool], object]) -> None:
    """Add a canvas to the focus order; the ring is shown unless the focus came by mouse."""
    by_mouse = False

    def pressed(event: object) -> None:
        nonlocal by_mouse
        by_mouse = True

    def entered(event: object) -> None:
        nonlocal by_mouse
        if not by_mouse:
            ring(True)
        by_mouse = False

    tk.Misc.configure(canvas, {"takefocus": 1})
    tk.Misc.bind(canvas, "<Button-1>", pressed, add="+")
    tk.Misc.bind(canvas, "<FocusIn>", entered, add="+")
    tk.Misc.bind(canvas, "<FocusOut>", lambda event: ring(False), add="+")
