"""A rounded panel: a plain frame with a border and four small images, which is drawn at once, also when it is resized.

customtkinter's frame draws its shape on a canvas, which takes ten milliseconds for each.
"""

from __future__ import annotations

import tkinter as tk
from typing import Any, Final

from PIL import ImageTk

from app.widgets import rounded_images, theme
from app.widgets.padding import UnscaledPadding

_CORNERS: Final = ("nw", "ne", "sw", "se")
_AT: Final = {"nw": (0.0, 0.0), "ne": (1.0, 0.0), "sw": (0.0, 1.0), "se": (1.0, 1.0)}


class Card(UnscaledPadding, tk.Frame):
    """`fg_color` fills it, `border_color` surrounds it, `bg_color` is behind its corners.

    The padding given to `pack` and `grid` is in unscaled pixels, as for customtkinter's widgets.
    """

    def __init__(
        self,
        parent: tk.Misc,
        *,
        fg_color: theme.Colour = theme.CARD,
        border_color: theme.Colour = theme.LINE,
        bg_color: theme.Colour = theme.WINDOW,
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=1)
        self._colours = {"fg_color": fg_color, "border_color": border_color, "bg_color": bg_color}
        self._corners = [tk.Label(self, borderwidth=0, highlightthickness=0, padx=0, pady=0) for _ in _CORNERS]
        for label, anchor in zip(self._corners, _CORNERS, strict=True):
            x, y = _AT[anchor]
            label.place(relx=x, rely=y, anchor=anchor, bordermode="outside")  # type: ignore[arg-type]
        theme.follow(self, "card", self._draw)

    def configure(self, **colours: Any) -> None:  # type: ignore[override]
        """Set some of the colours."""
        self._colours |= colours
        self._draw()

    def _draw(self) -> None:
        fill, line, back = (theme.resolve(self._colours[name]) for name in ("fg_color", "border_color", "bg_color"))
        tk.Misc.configure(self, {"bg": fill, "highlightbackground": line, "highlightcolor": line})
        radius = theme.px(theme.CARD_RADIUS)
        self._images: list[ImageTk.PhotoImage] = []  # Tk itself keeps no reference
        for label, anchor in zip(self._corners, _CORNERS, strict=True):
            image = rounded_images.corner(self, radius, anchor, fill=fill, line=line, bg=back)
            self._images.append(image)
            label.configure(image=image, bg=back)  # which the screen shows until the image is drawn
