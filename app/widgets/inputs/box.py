"""The rounded border of text fields and menus."""

from __future__ import annotations

import tkinter as tk

from app.widgets import rounded_images, theme


class Box(tk.Canvas):
    """A rounded field that shows focus, invalid and disabled states."""

    def __init__(self, parent: tk.Misc, bg: theme.Colour, width: int, height: int = theme.CONTROL_HEIGHT) -> None:
        super().__init__(parent, width=theme.px(width), height=theme.px(height), borderwidth=0, highlightthickness=0)
        self._on = bg
        self._invalid = False
        self._focused = False
        self._enabled = True
        self._back = self.create_image(0, 0, anchor="nw")
        self.bind("<Configure>", lambda event: self.draw(), add="+")
        theme.follow(self, "box", self.draw)

    def mark(self, invalid: bool) -> None:
        """Show or remove the red border of an invalid value."""
        if invalid != self._invalid:
            self._invalid = invalid
            self.draw()

    def draw(self) -> None:
        """Redraw after a change of state or size."""
        is_focused = self._focused and self._enabled  # a click focuses text that is off, to copy it
        line = (
            theme.BAD
            if self._invalid
            else theme.ACCENT
            if is_focused
            else theme.FIELD_LINE
            if self._enabled
            else theme.LINE
        )
        self._picture = rounded_images.rounded(
            self,
            *self.extent(),
            theme.px(theme.RADIUS),
            fill=theme.resolve(theme.FIELD if self._enabled else theme.CARD),
            line=theme.resolve(line),
            bg=theme.resolve(self._on),
            line_width=max(theme.px(2 if is_focused else 1), 1),
        )
        self.itemconfigure(self._back, image=self._picture)
        tk.Misc.configure(self, {"bg": theme.resolve(self._on)})

    def extent(self) -> tuple[int, int]:
        """Width and height in pixels; as requested until it is laid out, which may give it less."""
        width, height = self.winfo_width(), self.winfo_height()
        return (width, height) if width > 1 else (int(self.cget("width")), int(self.cget("height")))

    def set_width(self, width: int) -> None:
        """Set the width in unscaled pixels."""
        self.configure(width=theme.px(width))

    def _focus(self, focused: bool) -> None:
        self._focused = focused
        self.draw()
