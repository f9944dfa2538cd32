"""On or off."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app import look, shapes
from app.inputs.focus import take_focus


class Switch(tk.Canvas):
    """On or off; Space turns it."""

    SIZE = (38, 24)

    def __init__(self, parent: tk.Misc, turned: Callable[[bool], object], *, on: look.Colour = look.CARD) -> None:
        width, height = self.SIZE
        super().__init__(
            parent,
            width=look.px(width),
            height=look.px(height),
            borderwidth=0,
            highlightthickness=0,
            takefocus=1,
            cursor="hand2",
        )
        self._on = on
        self._turned = turned
        self._value = self._focused = False
        self._enabled = True
        self._image = self.create_image(0, 0, anchor="nw")
        self.bind("<Button-1>", lambda event: self.toggle())
        for key in ("<space>", "<Return>"):
            self.bind(key, lambda event: self.toggle())
        take_focus(self, self._ring)
        look.follow(self, "switch", self.draw)

    def get(self) -> bool:
        """Whether it is on."""
        return self._value

    def show(self, value: bool) -> None:
        """Show a value without telling anybody."""
        if value != self._value:
            self._value = value
            self.draw()

    def toggle(self) -> None:
        """Turn it as people do."""
        if self._enabled:
            self.show(not self._value)
            self._turned(self._value)

    def enable(self, enabled: bool) -> None:
        """Greyed and out of the focus order, or not."""
        self._enabled = enabled
        self.configure(takefocus=enabled, cursor="hand2" if enabled else "")
        self.draw()

    def draw(self) -> None:
        """Draw it as it stands."""
        track = (look.ACCENT if self._value else look.TROUGH) if self._enabled else look.LINE
        self._picture = shapes.switch(
            self,
            look.px(self.SIZE[0]),
            look.px(self.SIZE[1]),
            turned=self._value,
            track=look.now(track),
            knob=look.now(look.KNOB if self._enabled else look.FAINT),
            on=look.now(self._on),
            ring=look.now(look.ACCENT_TEXT if self._focused else self._on),
        )
        self.itemconfigure(self._image, image=self._picture)
        tk.Misc.configure(self, {"bg": look.now(self._on)})

    def _ring(self, focused: bool) -> None:
        self._focused = focused
        self.draw()
