"""What all pages of the monitor have in common."""

from __future__ import annotations

import tkinter as tk

from app import look
from app.run_control import RunControl
from app.state import AppState


class Page(tk.Frame):
    """Built when first shown; `refresh` is called several times a second while it is in sight."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        look.paint(self, bg=look.WINDOW)
        self.state = state
        self.run: RunControl | None = None
        self.build()

    def follow(self, run: RunControl | None) -> None:
        """Show this run."""
        if run is not self.run:
            self.run = run
            self.followed()

    def build(self) -> None:
        """Make the widgets."""

    def followed(self) -> None:
        """`self.run` is another one."""

    def refresh(self) -> None:
        """Show what is new; takes no more than a few milliseconds where nothing is."""

    def close(self) -> None:
        """The window is closing."""
