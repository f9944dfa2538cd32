"""Actions after a while, of widgets that may be destroyed meanwhile."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable


def later(widget: tk.Misc, ms: int, action: Callable[[], object]) -> str:
    """As `widget.after`, but `action` is not called once the widget is destroyed. Returns the identifier of the call.

    `after` leaves a script to Tcl that outlives the widget while its command does not; a new command may then get that
    name, such as another widget's binding, which would be called without its event. The call is the main window's:
    `widget.after_cancel` would remove a command that the main window then fails to remove at its end.
    """
    root: tk.Misc = widget.nametowidget(".")
    return root.after(ms, lambda: widget.winfo_exists() and action())
