"""Events of a window itself, without those of all the widgets inside."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable


def bind_own(window: tk.Misc, sequence: str, action: Callable[[], object]) -> None:
    """Call `action` at an event of a main window or dialog, and only at its own.

    Tk passes the events of every widget to the bindings of its window, too: one call of Python for each of the hundreds
    of widgets that a page lays out, which took as long as the layout.
    """
    tag = f"Own{window}"
    if tag not in window.bindtags():
        window.bindtags((tag, *window.bindtags()))
    window.tk.call("bind", tag, sequence, f"+{window.register(action)}")
