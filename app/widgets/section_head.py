"""The head of a section: its title, a line beside it on the same baseline, and its buttons at the right.

Only here it is decided how high heads are and where titles stand, so that nothing moves from one section to the next.
"""

from __future__ import annotations

import tkinter as tk
from typing import Final, Literal

from app.widgets import theme
from app.widgets.buttons import Button, Overflow, Segments, frame, text
from app.widgets.ellipsis import Cut, fit
from app.widgets.text_width import text_width

MARGIN: Final = 24  # beside heads, and beside what is below them; this and all sizes below in unscaled pixels
_FEWEST: Final = 8  # letters of a line that is cut off: fewer say nothing
_ABOVE, _BELOW, _GAP = 2 * theme.UNIT, 12, 2 * theme.UNIT


class SectionHead:
    """Takes the upper edge of `parent`; pack buttons into `frame`, at the right."""

    def __init__(self, parent: tk.Misc, title: str, line: str = "") -> None:
        self.frame = frame(parent, theme.WINDOW)
        self._title = text(self.frame, title, "title", bg=theme.WINDOW)
        ascent, height = _metrics(self._title, "title")
        head_height = max(theme.px(theme.CONTROL_HEIGHT), height)
        self._baseline = (head_height - height) // 2 + ascent
        self.frame.configure(height=head_height)
        self.frame.pack_propagate(False)
        self.frame.pack(fill="x", padx=theme.px(MARGIN), pady=(theme.px(_ABOVE), theme.px(_BELOW)))
        self._stand_on_baseline(self._title, "title", "left")
        self._line = self._label("body", theme.MUTED, "left")
        self._wanted, self._end = line, ""
        self._cut: Cut | None = None
        self._overflow: Overflow | None = None  # of the buttons, once the width is known
        self.frame.bind("<Configure>", lambda event: self._fit())

    def add_label(self, font: theme.FontName = "body", colour: theme.Colour = theme.MUTED) -> tk.Label:
        """An empty label before what has been packed at the right, where no title moves it."""
        return self._label(font, colour, "right")

    def say(self, line: str, end: str = "", *, cut: Cut | None = None) -> None:
        """Set the line beside the title; without room for it, it is shortened at its `cut`, or left out.

        Its `end` is shown whole as long as there is room for that.
        """
        self._wanted, self._end, self._cut = line, end, cut
        self._fit()

    def _label(self, font: theme.FontName, colour: theme.Colour, side: Literal["left", "right"]) -> tk.Label:
        label = text(self.frame, "", font, colour=colour, bg=theme.WINDOW)
        gap = theme.px(_GAP)
        self._stand_on_baseline(label, font, side, (gap, 0) if side == "left" else (0, gap))
        return label

    def _stand_on_baseline(
        self, label: tk.Label, font: theme.FontName, side: Literal["left", "right"], beside: tuple[int, int] = (0, 0)
    ) -> None:
        ascent, _ = _metrics(label, font)
        label.pack(side=side, anchor="n", padx=beside, pady=(self._baseline - ascent, 0))

    def _fit(self) -> None:
        width = self.frame.winfo_width()
        if width <= 1:
            return  # until it is known
        gap = theme.px(theme.UNIT)
        packed = [each for each in self.frame.pack_slaves() if each is not self._line]
        labels = [each for each in packed if isinstance(each, tk.Label)]
        room = width - sum(each.winfo_reqwidth() + gap for each in labels) - 2 * theme.px(_GAP)
        for each in packed:
            if isinstance(each, Segments):
                room -= each.fit(room) + gap
        if self._overflow is None and (buttons := [each for each in packed if isinstance(each, Button)]):
            self._overflow = Overflow(self.frame, dict.fromkeys(buttons, ""))
        if self._overflow is not None:
            room -= self._overflow.fit(room)
        font = theme.tk_font()
        if self._cut is not None:
            left = room - text_width(self._line, self._end, font)
            shown = fit(self._line, self._wanted, font, max(left, 0), cut=self._cut) + self._end
            shown = fit(self._line, shown, font, max(room, 0))
        else:
            shown = self._wanted if text_width(self._line, self._wanted, font) <= room else ""
        if shown != self._wanted + self._end and len(shown) < _FEWEST:
            shown = ""
        if self._line.cget("text") != shown:
            self._line.configure(text=shown)


def _metrics(widget: tk.Misc, name: theme.FontName) -> tuple[int, int]:
    """Ascent and line height of a font, in pixels."""
    font = theme.tk_font(name)
    return (
        int(widget.tk.call("font", "metrics", font, "-displayof", widget, "-ascent")),
        int(widget.tk.call("font", "metrics", font, "-displayof", widget, "-linespace")),
    )
