"""How wide a text is drawn."""

from __future__ import annotations

import tkinter as tk

from app.widgets import theme
from modules.files import visible


def text_width(widget: tk.Misc, text: str, font: theme.Font) -> int:
    """The width of one line of text as it is shown, in pixels.

    Tk closes a font that no widget uses and opens it anew at each measurement, which takes 1 ms instead of 0.01; so a
    label that is never shown keeps each font that was measured.
    """
    root = widget.nametowidget(".")
    keepers: dict[theme.Font, tk.Label] = root.__dict__.setdefault("measured_fonts_", {})
    if font not in keepers:
        keepers[font] = tk.Label(root, font=font)
    return int(widget.tk.call("font", "measure", font, visible(text)))
