"""A horizontal bar with round ends on a canvas; Tk's own round ends are neither smooth nor symmetric."""

from __future__ import annotations

import tkinter as tk

from app.widgets import rounded_images


class Bar:
    """All sizes are in pixels; hidden while `place` has not been called."""

    def __init__(self, canvas: tk.Canvas, thickness: int) -> None:
        self._canvas, self._thickness = canvas, thickness
        self._body = canvas.create_rectangle(0, 0, 0, 0, width=0, state="hidden")
        self._ends = canvas.create_image(0, 0, anchor="nw"), canvas.create_image(0, 0, anchor="nw")

    def colour(self, fill: str) -> None:
        """Set the colour."""
        self._disc = rounded_images.disc(self._canvas, self._thickness, fill=fill)
        self._canvas.itemconfigure(self._body, fill=fill)
        for end in self._ends:
            self._canvas.itemconfigure(end, image=self._disc)

    def place(self, left: int, right: int, top: int) -> None:
        """Draw it between two edges, but at least as long as it is thick."""
        thick, right = self._thickness, max(right, left + self._thickness)
        self._canvas.coords(self._ends[0], left, top)
        self._canvas.coords(self._ends[1], right - thick, top)
        self._canvas.coords(self._body, left + thick // 2, top, right - thick // 2, top + thick)
        self._show("normal")

    def hide(self) -> None:
        """Hide it until it is placed again."""
        self._show("hidden")

    def _show(self, state: str) -> None:
        for item in (self._body, *self._ends):
            self._canvas.itemconfigure(item, state=state)
