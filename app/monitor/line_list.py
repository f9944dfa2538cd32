"""A long list of text lines that wraps and draws only the visible ones, and follows its end until scrolled up."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from tkinter import font as tk_fonts
from typing import Final

from app.monitor.log_reader import RANK_LINE, LogLine
from app.widgets import theme
from app.widgets.scrollbar import Scrollbar

COLOURS: Final = {"info": theme.TEXT, "warning": theme.WARN, "error": theme.BAD}
_EDGE: Final = 10
_INDENT: Final = 4  # characters before the rows of a line after its first, unless its message begins further right


class LineList(tk.Frame):
    """Scrolls by wheel, keys and bar; a click selects a line, Shift+click a range, Ctrl+A all; Ctrl+C copies.

    A line that is too long takes several rows; `first` is the line at the top.
    """

    def __init__(self, parent: tk.Misc, scrolled: Callable[[bool], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._scrolled = scrolled
        self.lines: Sequence[LogLine] = ()
        self.empty = ""  # shown while there are none
        self.follows = True
        self.first = 0
        self.selection: tuple[int, int] | None = None
        self._rows: list[int] = []  # the canvas items
        self._heads: list[int] = []  # those of the time and rank before a line
        self._line_of_row: list[int] = []
        self._font = tk_fonts.Font(self, theme.tk_font("mono"))
        self._height = self._font.metrics("linespace") + theme.px(3)
        self._character = max(1, self._font.measure("0"))
        self._columns: dict[str, int] = {}  # of letters that are not ASCII, which may come from another font
        self.canvas = tk.Canvas(self, borderwidth=0, highlightthickness=0, takefocus=1)
        theme.paint(self.canvas, bg=theme.CARD)
        self.bar = Scrollbar(self, self._on_scrollbar)
        self.bar.pack(side="right", fill="y", padx=3, pady=6)
        self.canvas.pack(fill="both", expand=True)
        self._highlight = self.canvas.create_rectangle(0, 0, 0, 0, width=0, state="hidden")
        self._nothing = self.canvas.create_text(0, 0, font=theme.tk_font())
        self._listen()
        theme.follow(self.canvas, "lines", self.draw)

    @property
    def visible_rows(self) -> int:
        """Number of rows in sight."""
        return max(1, (self.canvas.winfo_height() - theme.px(_EDGE)) // self._height)

    def show(self, lines: Sequence[LogLine], dropped: int = 0) -> None:
        """Show lines; `dropped`: how many were removed at the start since the last call."""
        self.lines = lines
        self.first = len(lines) if self.follows else max(0, self.first - dropped)
        if self.selection is not None and dropped:
            self.selection = None
        self.draw()

    def scroll_to(self, index: int) -> None:
        """Select a line and scroll to it, a few lines below the top."""
        self.selection = (index, index)
        self.follows = False
        self.first = index - 3
        self.draw()
        self._scrolled(self.follows)

    def scroll_to_end(self) -> None:
        """Follow the end again."""
        self.follows, self.first = True, len(self.lines)
        self.draw()
        self._scrolled(True)

    def draw(self) -> None:
        """Draw the visible lines, reusing canvas items."""
        visible_rows, count, canvas = self.visible_rows, len(self.lines), self.canvas
        self.first = max(0, min(self.first, self._last_first()))
        while len(self._rows) < visible_rows:
            self._rows.append(canvas.create_text(0, 0, anchor="nw", font=self._font))
            self._heads.append(canvas.create_text(0, 0, anchor="nw", font=self._font))
        edge = theme.px(_EDGE) // 2
        rows = [
            (index, piece, self.lines[index].level)
            for index in range(self.first, min(count, self.first + visible_rows))
            for piece in self._pieces(self.lines[index].text)
        ][:visible_rows]
        self._line_of_row = [index for index, _, _ in rows]
        heads = heads_of(rows)
        for row, (item, head_item) in enumerate(zip(self._rows, self._heads, strict=True)):
            if row >= len(rows):
                canvas.itemconfigure(item, text="")
                canvas.itemconfigure(head_item, text="")
                continue
            (_, piece, level), (head, is_said) = rows[row], heads[row]
            for each in (item, head_item):
                canvas.coords(each, theme.px(_EDGE), edge + row * self._height)
            canvas.itemconfigure(head_item, text="" if is_said else head, fill=theme.resolve(theme.FAINT))
            message = " " * len(head) + piece[len(head) :]
            canvas.itemconfigure(item, text=message, fill=theme.resolve(COLOURS[level]))
        self._draw_highlight(edge)
        canvas.coords(self._nothing, canvas.winfo_width() / 2, canvas.winfo_height() / 2)
        canvas.itemconfigure(self._nothing, text="" if count else self.empty, fill=theme.resolve(theme.FAINT))
        after = self._line_of_row[-1] + 1 if rows else 0
        self.bar.show(self.first / max(1, count), after / count if count else 1)

    def _pieces(self, line: str) -> list[str]:
        """The rows of a line, each with as many words as fit."""
        columns = max(20, (self.canvas.winfo_width() - 2 * theme.px(_EDGE)) // self._character)
        line = without_info(line)
        indent = len(_head(line)) or _INDENT
        return wrapped(line, columns, indent if indent < columns // 2 else _INDENT, self._columns_of)

    def _columns_of(self, letter: str) -> int:
        if letter not in self._columns:
            self._columns[letter] = -(-self._font.measure(letter) // self._character)
        return self._columns[letter]

    def _last_first(self) -> int:
        """The line at the top when the end is in sight."""
        left, first = self.visible_rows, len(self.lines)
        while first > 0 and (left := left - len(self._pieces(self.lines[first - 1].text))) >= 0:
            first -= 1
        return min(first, max(0, len(self.lines) - 1))

    def _draw_highlight(self, edge: int) -> None:
        canvas = self.canvas
        chosen = self.selection
        rows = [
            row
            for row, line in enumerate(self._line_of_row)
            if chosen is not None and min(chosen) <= line <= max(chosen)
        ]
        if not rows:
            canvas.itemconfigure(self._highlight, state="hidden")
            return
        low, high = rows[0], rows[-1] + 1
        canvas.coords(self._highlight, 0, edge + low * self._height, canvas.winfo_width(), edge + high * self._height)
        canvas.itemconfigure(self._highlight, state="normal", fill=theme.resolve(theme.ACCENT_SOFT))
        canvas.tag_lower(self._highlight)

    def selected_text(self) -> str:
        """The selected lines."""
        if self.selection is None:
            return ""
        low, high = min(self.selection), max(self.selection)
        return "\n".join(line.text for line in self.lines[low : high + 1])

    def _listen(self) -> None:
        canvas = self.canvas
        canvas.bind("<Configure>", lambda event: self.draw() if not self.follows else self.scroll_to_end())
        for sequence, lines in (("<Button-4>", -3), ("<Button-5>", 3), ("<Up>", -1), ("<Down>", 1)):
            canvas.bind(sequence, lambda event, lines=lines: self._move(lines))  # type: ignore[misc]
        canvas.bind("<MouseWheel>", lambda event: self._move(-3 if event.delta > 0 else 3))
        canvas.bind("<Prior>", lambda event: self._move(-self._page()))
        canvas.bind("<Next>", lambda event: self._move(self._page()))
        canvas.bind("<Home>", lambda event: self._move(-len(self.lines)))
        canvas.bind("<End>", lambda event: self.scroll_to_end())
        canvas.bind("<Button-1>", lambda event: self._click(event.y, extends=False))
        canvas.bind("<Shift-Button-1>", lambda event: self._click(event.y, extends=True))
        canvas.bind("<B1-Motion>", lambda event: self._click(event.y, extends=True))
        canvas.bind("<Control-c>", lambda event: self._copy())
        canvas.bind("<Control-a>", lambda event: self._select_all())

    def _move(self, lines: int) -> str:
        last = self._last_first()
        self.first = max(0, min(self.first + lines, last))
        self.follows = self.first >= last
        self.draw()
        self._scrolled(self.follows)
        return "break"

    def _on_scrollbar(self, how: str, amount: str, unit: str = "") -> None:
        if how == "moveto":
            self._move(round(float(amount) * len(self.lines)) - self.first)
        else:
            self._move(int(float(amount)) * (self._page() if unit == "pages" else 3))

    def _page(self) -> int:
        """Lines in sight."""
        return max(1, len(set(self._line_of_row)))

    def _click(self, y: int, *, extends: bool) -> None:
        self.canvas.focus_set()
        row = (y - theme.px(_EDGE) // 2) // self._height
        if 0 <= row < len(self._line_of_row):
            index = self._line_of_row[row]
            self.selection = (self.selection[0] if extends and self.selection else index, index)
            self.draw()

    def _select_all(self) -> str:
        if self.lines:
            self.selection = (0, len(self.lines) - 1)
            self.draw()
        return "break"

    def _copy(self) -> None:
        if content := self.selected_text():
            self.clipboard_clear()
            self.clipboard_append(content)


def wrapped(
    line: str, columns: int, indent: int = _INDENT, columns_of: Callable[[str], int] = lambda letter: 1
) -> list[str]:
    """The line in rows of at most `columns`, broken after spaces; all but the first are indented.

    A word that fills most of a row, such as a path, is broken where the row ends. `columns_of` says how many a letter
    takes that is not ASCII.
    """
    rows: list[str] = []
    while (room := _fitting(line, columns, columns_of)) < len(line):
        end = line.rfind(" ", room // 2, room + 1)
        end = room if end < 0 else end
        rows.append(line[:end])
        line = " " * indent + line[end:].removeprefix(" ")
    return [*rows, line]


def _fitting(line: str, columns: int, columns_of: Callable[[str], int]) -> int:
    """How many of the first letters fit."""
    if line.isascii():
        return min(columns, len(line))
    for end, letter in enumerate(line):
        columns -= 1 if letter.isascii() else columns_of(letter)
        if columns < 0:
            return max(1, end)
    return len(line)


def without_info(line: str) -> str:
    """The line without the level and the logger that most lines have, which leaves their messages more room."""
    found = RANK_LINE.match(line)
    if found is None or found[3] != "INFO":
        return line
    return f"{found[0].removesuffix('INFO ')}{line[len(_head(line)) :]}"


def heads_of(rows: Sequence[tuple[int, str, str]]) -> list[tuple[str, bool]]:
    """Of each row (line, text, level): what stands before its message, and whether the line above says the same."""
    heads: list[tuple[str, bool]] = []
    above, previous = "", -1
    for line, piece, _ in rows:
        head = _head(piece) if line != previous else ""
        heads.append((head, bool(head) and head == above))
        if line != previous:
            above, previous = head, line
    return heads


def _head(text: str) -> str:
    """The time, rank, level and logger before a message."""
    found = RANK_LINE.match(text)
    if found is None:
        return ""
    logger, colon, _ = text[found.end() :].partition(": ")
    return text[: found.end() + len(logger + colon)] if found[3] and colon and " " not in logger else found[0]
