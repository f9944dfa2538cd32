"""A switch."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets import rounded_images, theme
from app.widgets.inputs.focus import handler, make_focusable


class Switch(tk.Canvas):
    """On or off; Space toggles it."""

    SIZE = (38, 24)
    RING = 2  # pixels around the track, for the focus ring: other controls begin that much further right

    def __init__(self, parent: tk.Misc, toggled: Callable[[bool], object], *, bg: theme.Colour = theme.CARD) -> None:
        width, height = self.SIZE
        super().__init__(
            parent,
            width=theme.px(width),
            height=theme.px(height),
            borderwidth=0,
            highlightthickness=0,
            takefocus=1,
            cursor="hand2",
        )
        self._on = bg
        self._toggled = toggled
        self._value = self._focused = False
        self._enabled = True
        self._image = self.create_image(0, 0, anchor="nw")
        self.bind("<Button-1>", lambda event: self.toggle())
        for key in ("<space>", "<Return>"):
            self.bind(key, handler(self.toggle))  # a dialog does not act on it, too
        make_focusable(self, self._ring)
        theme.follow(self, "switch", self.draw)

    def get(self) -> bool:
        """Whether it is on."""
        return self._value

    def show(self, value: bool) -> None:
        """Show a value without calling the callback."""
        if value != self._value:
            self._value = value
            self.draw()

    def toggle(self) -> None:
        """Toggle it as the user does."""
        if self._enabled:
            self.show(not self._value)
            self._toggled(self._value)

    def enable(self, enabled: bool) -> None:
        """Enable or disable it."""
        self._enabled = enabled
        self.configure(takefocus=enabled, cursor="hand2" if enabled else "")
        self.draw()

    def draw(self) -> None:
        """Redraw it."""
        track = (theme.ACCENT if self._value else theme.SWITCH_OFF) if self._enabled else theme.LINE
        self._knob_image = rounded_images.switch(
            self,
            theme.px(self.SIZE[0]),
            theme.px(self.SIZE[1]),
            is_on=self._value,
            track=theme.resolve(track),
            knob=theme.resolve(theme.KNOB if self._enabled else theme.FAINT),
            bg=theme.resolve(self._on),
            ring=theme.resolve(theme.ACCENT_TEXT if self._focused else self._on),
        )
        self.itemconfigure(self._image, image=self._knob_image)
        tk.Misc.configure(self, {"bg": theme.resolve(self._on)})

    def _ring(self, focused: bool) -> None:
        self._focused = focused
        self.draw()
