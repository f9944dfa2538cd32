"""The rounded field that lines, lists and boxes of text stand in."""

from __future__ import annotations

import tkinter as tk

from app import look, shapes


class Box(tk.Canvas):
    """A rounded field that shows whether it has the focus, holds something wrong, or is greyed."""

    def __init__(self, parent: tk.Misc, on: look.Colour, width: int, height: int = look.CONTROL_HEIGHT) -> None:
        super().__init__(parent, width=look.px(width), height=look.px(height), borderwidth=0, highlightthickness=0)
        self._on = on
        self._wrong = False
        self._focused = False
        self._enabled = True
        self._back = self.create_image(0, 0, anchor="nw")
        self.bind("<Configure>", lambda event: self.draw(), add="+")
        look.follow(self, "box", self.draw)

    def mark(self, wrong: bool) -> None:
        """A red border."""
        if wrong != self._wrong:
            self._wrong = wrong
            self.draw()

    def draw(self) -> None:
        """Draw the field anew, where its state or its size changed."""
        line = (
            look.BAD
            if self._wrong
            else look.ACCENT
            if self._focused
            else look.FIELD_LINE
            if self._enabled
            else look.LINE
        )
        self._picture = shapes.rounded(
            self,
            max(self.winfo_width(), int(self.cget("width"))),
            max(self.winfo_height(), int(self.cget("height"))),
            look.px(look.RADIUS),
            fill=look.now(look.FIELD if self._enabled else look.CARD),
            line=look.now(line),
            on=look.now(self._on),
            line_width=max(look.px(2 if self._focused else 1), 1),
        )
        self.itemconfigure(self._back, image=self._picture)
        tk.Misc.configure(self, {"bg": look.now(self._on)})

    def set_width(self, width: int) -> None:
        """Another width, in unscaled pixels."""
        self.configure(width=look.px(width))

    def _focus(self, focused: bool) -> None:
        self._focused = focused
        self.draw()
