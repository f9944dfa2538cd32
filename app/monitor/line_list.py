"""A long list of lines of text, of which only those in sight are drawn; it follows its end until one scrolls up."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from tkinter import font as tk_fonts
from typing import Final

from app import look
from app.bar import Bar
from app.monitor.log_reader import LogLine

COLOURS: Final = {"info": look.TEXT, "warning": look.WARN, "error": look.BAD}
_EDGE: Final = 10


class LineList(tk.Frame):
    """Wheel, page keys and bar scroll; a click chooses a line, with Shift up to it; Ctrl+C copies."""

    def __init__(self, parent: tk.Misc, scrolled: Callable[[bool], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        look.paint(self, bg=look.CARD)
        self._scrolled = scrolled
        self.lines: Sequence[LogLine] = ()
        self.follows = True
        self.first = 0
        self.chosen: tuple[int, int] | None = None
        self._shift = 0
        self._rows: list[int] = []
        self._font = tk_fonts.Font(self, look.tk_font("mono"))
        self._height = self._font.metrics("linespace") + look.px(3)
        self.canvas = tk.Canvas(self, borderwidth=0, highlightthickness=0, takefocus=1)
        look.paint(self.canvas, bg=look.CARD)
        self.bar = Bar(self, self._by_bar)
        self.bar.pack(side="right", fill="y", padx=3, pady=6)
        self.canvas.pack(fill="both", expand=True)
        self._mark = self.canvas.create_rectangle(0, 0, 0, 0, width=0, state="hidden")
        self._listen()
        look.follow(self.canvas, "lines", self.draw)

    @property
    def room(self) -> int:
        """How many lines fit."""
        return max(1, (self.canvas.winfo_height() - look.px(_EDGE)) // self._height)

    def show(self, lines: Sequence[LogLine], dropped: int = 0) -> None:
        """Other lines, or the same with more at the end and `dropped` less at the beginning."""
        self.lines = lines
        self.first = len(lines) if self.follows else max(0, self.first - dropped)
        if self.chosen is not None and dropped:
            self.chosen = None
        self.draw()

    def see(self, place: int) -> None:
        """Choose a line and bring it into sight, a few lines below the top."""
        self.chosen = (place, place)
        self.follows = False
        self.first = place - 3
        self.draw()
        self._scrolled(self.follows)

    def to_end(self) -> None:
        """Follow the end again."""
        self.follows, self.first = True, len(self.lines)
        self.draw()
        self._scrolled(True)

    def draw(self) -> None:
        """The lines in sight, in items that are used again and again."""
        room, count, canvas = self.room, len(self.lines), self.canvas
        self.first = max(0, min(self.first, count - room))
        while len(self._rows) < room:
            self._rows.append(canvas.create_text(0, 0, anchor="nw", font=self._font))
        edge = look.px(_EDGE) // 2
        for row, item in enumerate(self._rows):
            place = self.first + row
            if row >= room or place >= count:
                canvas.itemconfigure(item, text="")
                continue
            line = self.lines[place]
            canvas.coords(item, look.px(_EDGE), edge + row * self._height)
            canvas.itemconfigure(item, text=line.text[self._shift :], fill=look.now(COLOURS[line.level]))
        self._draw_mark(edge)
        self.bar.show(self.first / max(1, count), min(1.0, (self.first + room) / max(1, count)))

    def _draw_mark(self, edge: int) -> None:
        canvas = self.canvas
        if self.chosen is None:
            canvas.itemconfigure(self._mark, state="hidden")
            return
        low, high = min(self.chosen) - self.first, max(self.chosen) - self.first + 1
        canvas.coords(self._mark, 0, edge + low * self._height, canvas.winfo_width(), edge + high * self._height)
        canvas.itemconfigure(self._mark, state="normal", fill=look.now(look.ACCENT_SOFT))
        canvas.tag_lower(self._mark)

    def copied(self) -> str:
        """The chosen lines."""
        if self.chosen is None:
            return ""
        low, high = min(self.chosen), max(self.chosen)
        return "\n".join(line.text for line in self.lines[low : high + 1])

    def _listen(self) -> None:
        canvas = self.canvas
        canvas.bind("<Configure>", lambda event: self.draw() if not self.follows else self.to_end())
        for sequence, lines in (("<Button-4>", -3), ("<Button-5>", 3), ("<Up>", -1), ("<Down>", 1)):
            canvas.bind(sequence, lambda event, lines=lines: self._move(lines))  # type: ignore[misc]
        canvas.bind("<MouseWheel>", lambda event: self._move(-3 if event.delta > 0 else 3))
        canvas.bind("<Prior>", lambda event: self._move(-self.room))
        canvas.bind("<Next>", lambda event: self._move(self.room))
        canvas.bind("<Home>", lambda event: self._move(-len(self.lines)))
        canvas.bind("<End>", lambda event: self.to_end())
        canvas.bind("<Left>", lambda event: self._sideways(-20))
        canvas.bind("<Right>", lambda event: self._sideways(20))
        canvas.bind("<Shift-Button-4>", lambda event: self._sideways(-20))
        canvas.bind("<Shift-Button-5>", lambda event: self._sideways(20))
        canvas.bind("<Button-1>", lambda event: self._click(event.y, extends=False))
        canvas.bind("<Shift-Button-1>", lambda event: self._click(event.y, extends=True))
        canvas.bind("<B1-Motion>", lambda event: self._click(event.y, extends=True))
        canvas.bind("<Control-c>", lambda event: self._copy())

    def _move(self, lines: int) -> str:
        self.first = max(0, min(self.first + lines, len(self.lines) - self.room))
        self.follows = self.first >= len(self.lines) - self.room
        self.draw()
        self._scrolled(self.follows)
        return "break"

    def _by_bar(self, how: str, amount: str, unit: str = "") -> None:
        if how == "moveto":
            self._move(round(float(amount) * len(self.lines)) - self.first)
        else:
            self._move(int(float(amount)) * (self.room if unit == "pages" else 3))

    def _sideways(self, by: int) -> str:
        self._shift = max(0, self._shift + by)
        self.draw()
        return "break"

    def _click(self, y: int, *, extends: bool) -> None:
        self.canvas.focus_set()
        place = self.first + (y - look.px(_EDGE) // 2) // self._height
        if 0 <= place < len(self.lines):
            self.chosen = (self.chosen[0] if extends and self.chosen else place, place)
            self.draw()

    def _copy(self) -> None:
        if words := self.copied():
            self.clipboard_clear()
            self.clipboard_append(words)
