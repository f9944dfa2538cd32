"""Base class of the monitor's pages."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.runs.control import RunControl
from app.state import AppState
from app.widgets import theme


class Page(tk.Frame):
    """Built when first shown; `refresh` is called several times a second while it is visible."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self.state = state
        self.run: RunControl | None = None
        self.open_page: Callable[[str], object] = lambda name: None  # shows another page; set by the section
        self.build()

    def follow(self, run: RunControl | None) -> None:
        """Show this run."""
        if run is not self.run:
            self.run = run
            self.run_changed()

    def build(self) -> None:
        """Create the widgets."""

    def run_changed(self) -> None:
        """Called when `self.run` has changed."""

    def refresh(self) -> None:
        """Show new data; takes at most a few milliseconds if there is none."""

    @property
    def is_unfinished(self) -> bool:
        """Whether something is left to draw, for which `refresh` is called again soon."""
        return False

    def close(self) -> None:
        """Release threads and files when the window closes."""
