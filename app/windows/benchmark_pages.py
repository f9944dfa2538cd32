"""The pages of the benchmark's window: table, plot, comparison with an earlier result, and the program's output."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app.widgets import theme
from app.widgets.buttons import Segments, frame, text, wrap_within
from app.widgets.table import Table, table
from modules.files import printable
from modules.files.images import open_image
from modules.run.benchmark.records import BenchmarkResult
from modules.run.benchmark.tables import (
    COMPARED_HEADS,
    HEADS,
    compared_rows,
    differences,
    name_of,
    phases_line,
    result_rows,
    unmeasured_rows,
)

SIZE: Final = (1000, 330)  # of a page
_PAGES: Final = ("Table", "Plot", "Comparison", "Output")
_SHOWN_CHARACTERS: Final = 20_000
_MAX_LINES: Final = 4  # below the pages
_NOTHING_COMPARED: Final = "Choose an earlier result with Compare…; Save… keeps this one for later."
_NOTHING_MEASURED: Final = "This is the earlier result; Measure puts these settings beside it, case by case."
_IS_MEASURING: Final = "Each case appears beside the earlier result as soon as it is measured."


class BenchmarkPages:
    """One page at a time in `parent`, with a choice above and a note below."""

    def __init__(self, parent: tk.Misc) -> None:
        self.plot: ImageTk.PhotoImage | None = None
        self._result: BenchmarkResult | None = None
        self._before: BenchmarkResult | None = None
        self._is_measuring = False
        self.choice = Segments(parent, _PAGES, self.turn_to, bg=theme.CARD)
        self.choice.pack(anchor="w", pady=(0, theme.px(8)))
        holder = frame(parent)
        holder.configure(width=theme.px(SIZE[0]), height=theme.px(SIZE[1]))
        holder.pack_propagate(False)
        self._pages = {name: frame(holder) for name in _PAGES}
        self.table = _numbers(self._pages["Table"], HEADS)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_note())
        self._picture = tk.Label(self._pages["Plot"], borderwidth=0, text="")
        theme.paint(self._picture, bg=theme.CARD, fg=theme.MUTED)
        self._picture.pack(fill="both", expand=True)
        self.compared = _numbers(self._pages["Comparison"], COMPARED_HEADS)
        self._output = tk.Text(
            self._pages["Output"], wrap="word", borderwidth=0, highlightthickness=0, state="disabled", height=1
        )
        theme.paint(self._output, bg=theme.FIELD, fg=theme.TEXT)
        self._output.configure(font=theme.tk_font("mono"), padx=theme.px(12), pady=theme.px(10))
        self._output.pack(fill="both", expand=True)
        self.note = text(parent, colour=theme.MUTED, wrap=SIZE[0])
        self.note.configure(height=2, anchor="nw")
        wrap_within(self.note, parent, margin=0)
        self.note.pack(side="bottom", fill="x", pady=(theme.px(8), 0))  # before the pages, which give way to it
        holder.pack(fill="both", expand=True)
        self.turn_to("Table")

    def turn_to(self, page: str) -> None:
        """Show this page."""
        self.choice.set(page)
        for name, widget in self._pages.items():
            if name == page:
                widget.pack(fill="both", expand=True)
            else:
                widget.pack_forget()
        self._show_note()

    def show(self, result: BenchmarkResult | None, before: BenchmarkResult | None, *, is_measuring: bool) -> None:
        """Show the result as far as it has come, alone and beside an earlier one; a plot of another one goes."""
        if result is not self._result:
            self.plot = None
            self._picture.configure(image="", text="The plot is drawn when all cases are measured.")
        self._result, self._before, self._is_measuring = result, before, is_measuring
        _fill(self.table, [] if result is None else result_rows(result))
        if self.table.get_children() and not self.table.selection():
            self.table.selection_set("0")  # the case that the note is about
        rows: list[list[str]] = []
        if before is not None:
            rows = unmeasured_rows(before, result)
            if result is not None:
                rows = [*compared_rows(before, result)[0], *rows]
        _fill(self.compared, rows)
        self._show_note()

    def show_plot(self, file: Path) -> None:
        """Show the plot in this file."""
        with open_image(file) as opened:
            image = opened.convert("RGB")
        image.thumbnail((theme.px(SIZE[0]), theme.px(SIZE[1])), Image.Resampling.LANCZOS)
        self.plot = ImageTk.PhotoImage(image, master=self._picture)
        self._picture.configure(image=self.plot, text="")

    def show_output(self, output: str) -> None:
        """Show what the program says, its end if it is long."""
        shown, widget = printable(output[-_SHOWN_CHARACTERS:], _SHOWN_CHARACTERS, lines=True), self._output
        if shown == widget.get("1.0", "end-1c"):
            return
        widget.configure(state="normal")
        widget.delete("1.0", "end")
        widget.insert("1.0", shown)
        widget.see("end")
        widget.configure(state="disabled")

    def _show_note(self) -> None:
        """Below the page: the phases of the case that is selected, or what else differs from the earlier result."""
        lines = {"Table": self._case_lines, "Comparison": self._compared_lines}.get(self.choice.get(), list)()
        self.note.configure(text="\n".join(lines[:_MAX_LINES]))

    def _case_lines(self) -> list[str]:
        if self._result is None or not self._result.cases:
            return []
        chosen = self.table.selection()
        case = self._result.cases[int(chosen[0]) if chosen else 0]
        found = printable(case.failure) if case.measured is None else f"{phases_line(case.measured)}."
        failed = [each for each in self._result.cases if each.measured is None and each is not case]
        return [f"{name_of(case)}: {found}", *(f"{name_of(each)}: {printable(each.failure)}" for each in failed)]

    def _compared_lines(self) -> list[str]:
        if self._before is None:
            return [_NOTHING_COMPARED]
        if self._result is None:
            return [_IS_MEASURING if self._is_measuring else _NOTHING_MEASURED]
        others, alone = differences(self._before, self._result), compared_rows(self._before, self._result)[1]
        told = [f"Not only the speed differs: {'; '.join(others)}."] if others else []
        return [*told, *([_IS_MEASURING] if self._is_measuring else alone)]


def _numbers(parent: tk.Misc, heads: Sequence[str]) -> Table:
    """A table of figures."""
    narrow = {"ranks": 60, "batch": 60, "before": 75, "change": 75, "": 75}
    widths = {**narrow, "after samples/s": 125, "median step": 190, "memory": 190} if "change" in heads else {}
    widths["machines"] = 140
    columns = {head: (head[:1].upper() + head[1:], widths.get(head, 100)) for head in heads}
    return table(parent, columns, numbers=[head for head in heads if head != "machines"])


def _fill(shown: Table, rows: Sequence[Sequence[str]]) -> None:
    if [tuple(shown.item(item, "values")) for item in shown.get_children()] == [tuple(row) for row in rows]:
        return
    chosen = shown.selection()
    shown.delete(*shown.get_children())
    for number, row in enumerate(rows):
        shown.insert("", "end", iid=str(number), values=tuple(row))
    shown.selection_set([item for item in chosen if shown.exists(item)])
