"""The benchmark of the current settings, run in a child process: its table, its plot, and another result beside it."""

from __future__ import annotations

import os
import re
import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Entry, Segments, add_tooltip, frame, popup_menu, text, wrap_within
from app.widgets.table import Table, table
from app.windows.child_program import ProgramWindow, not_there, show_output
from app.windows.chooser import choose_path
from modules import ROOT
from modules.config import ConfigError
from modules.files import FileFault, open_for_writing, printable, read_bytes, replacing
from modules.files.images import open_image
from modules.run.benchmark.records import MOST_STEPS, BenchmarkResult
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
from modules.run.exit_codes import FINISHED, INTERRUPTED

SCRIPT: Final = ROOT / "scripts" / "benchmark.py"
_CASE: Final = re.compile(r"^Case \d+ of \d+: .*$", re.MULTILINE)
_EMPTY: Final = "Empty: 1, 2, 4, … and all that these settings start, with their own batch size."
_HINT_WIDTH: Final = 240  # unscaled, until it is known how much is left
_FIELDS: Final = (
    ("steps", "Steps", "30", "How many optimizer steps are measured in each case, after 10 that are not."),
    ("ranks", "Processes", "", "Such as 1 2 4: how many processes, each with a GPU if there are any."),
    ("batch_sizes", "Batch sizes", "", "Such as 1 2 4 8: also these, on the fewest processes."),
)  # option of the program, title, first content, help
SIZE: Final = (1000, 330)  # of a page
_PAGES: Final = ("Table", "Plot", "Comparison", "Output")
_MAX_LINES: Final = 4  # below the pages
_NOTHING_COMPARED: Final = "Choose an earlier result with Compare…; Save… keeps this one for later."
_NOTHING_MEASURED: Final = "This is the earlier result; Measure puts these settings beside it, case by case."
_IS_MEASURING: Final = "Each case appears beside the earlier result as soon as it is measured."


class BenchmarkWindow(ProgramWindow):
    """Runs scripts/benchmark.py with the current settings."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(
            parent,
            state,
            "Benchmark",
            "Times the steps of these settings on one GPU, on more of them and with other batch sizes, then on the "
            "machines that Train starts over ssh. Nothing is saved or validated. “Of peak”: floating-point "
            f"operations (FLOPs), of the most that the device can do.{not_there(state)}",
        )
        self.result: BenchmarkResult | None = None
        self.before: BenchmarkResult | None = None
        self.options = BenchmarkOptions(self.dialog.body)
        self.status = text(self.dialog.body, font="strong", wrap=SIZE[0])
        self.status.pack(anchor="w", pady=(0, theme.px(8)))
        self.pages = BenchmarkPages(self.dialog.body)
        self.dialog.button("Close", self.dialog.close)
        self.saving = self.dialog.button("Save…", self._offer_files)
        self.dialog.button("Compare…", self._choose_before)
        self.button = self.dialog.button("Measure", self.start_or_stop, "accent", widest="Measure again")
        self._show()

    def show(self) -> tk.Toplevel:
        """Open the window; measuring, which takes minutes, starts by its button."""
        return self.dialog.show()

    def start(self) -> None:
        """Measure the current settings."""
        if (config := self.settings()) is None:
            return
        try:
            arguments = [*self.options.arguments(), *self.hosts(config)]
        except (ValueError, ConfigError) as error:
            self.show_status(str(error), theme.BAD)
            return
        self._found, self._picture = self.file("result.json"), self.file("plot.png")
        for old in (self._found, self._picture):
            old.unlink(missing_ok=True)
        self.result = None
        self.button.configure(text="Stop")
        self.show_status("Starting…", theme.MUTED)
        named = ["--name", self.state.draft.file.name if self.state.draft.file else "unsaved settings"]
        files = ["--json", str(self._found), "--plot", str(self._picture), *(["--dark"] if theme.is_dark() else [])]
        self.run(SCRIPT, ["--config", self.saved(config), *named, *files, *arguments])
        self._show()

    def progressed(self, output: str) -> None:
        """Show which case is measured, the cases that were, and what the program says."""
        if (cases := _CASE.findall(output)) and not self.is_stopping:
            self.show_status(f"{printable(cases[-1])}…", theme.MUTED)
        self._load()
        self.pages.show_output(output)

    def ended(self, exit_code: int, output: str) -> None:
        """Show the result, or why there is none."""
        self.button.configure(text="Measure again")
        self._load()
        self._show()
        if exit_code == FINISHED:
            self.show_status("All cases were measured.", theme.GOOD)
        elif exit_code == INTERRUPTED or self.is_stopping:
            self.show_status("Stopped." if self.result is None else "Stopped; the cases before are shown.", theme.MUTED)
        elif self.result is None:
            self.show_status("Nothing was measured: see Output.", theme.BAD)
            self.pages.turn_to("Output")
        else:
            self.show_status("A case has failed; its row says why.", theme.BAD)
        if self._picture.is_file():
            self.pages.show_plot(self._picture)

    def compare(self, file: Path) -> None:
        """Show an earlier result beside this one."""
        try:
            self.before = BenchmarkResult.load(file)
        except OSError as error:
            self.show_status(f"{printable(file)} cannot be read: {error.strerror or error}.", theme.BAD)
            return
        except FileFault as fault:
            self.show_status(f"{printable(file)} {fault}; choose a file that Save… has written.", theme.BAD)
            return
        if self.child is None:  # else it says which case is measured
            self.show_status("", theme.MUTED)
        self._show()
        self.pages.turn_to("Comparison")

    def save(self, ending: str, file: Path) -> None:
        """Keep the result (json) or the plot (png). A file in the way was agreed to be replaced."""
        try:
            if ending == "json" and self.result is not None:
                self.result.save(file)
            elif ending == "png":
                with replacing(file) as unfinished, os.fdopen(open_for_writing(unfinished), "wb") as target:
                    target.write(read_bytes(self._picture))
        except OSError as error:
            self.show_status(f"{printable(file)} cannot be written: {error.strerror or error}.", theme.BAD)
            return
        self.show_status(f"Saved to {printable(file.name)}.", theme.GOOD)

    def _load(self) -> None:
        """The result as far as it has come; the file may be half written."""
        try:
            found = BenchmarkResult.load(self._found)
        except (OSError, FileFault):
            return
        if self.result is None or len(found.cases) != len(self.result.cases):
            self.result = found
            self._show()

    def _show(self) -> None:
        self.pages.show(self.result, self.before, is_measuring=self.child is not None)
        self.saving.configure(state="disabled" if self.result is None else "normal")

    # Buttons

    def _offer_files(self) -> None:
        menu = popup_menu(self.dialog.window)
        menu.add_command(label="Save the result as JSON…", command=partial(self._choose_file, "json"))
        if self.pages.plot is not None:
            menu.add_command(label="Save the plot as PNG…", command=partial(self._choose_file, "png"))
        menu.tk_popup(self.saving.winfo_rootx(), self.saving.winfo_rooty() + self.saving.winfo_height())

    def _choose_file(self, ending: str) -> None:
        title = f"Save the {'result' if ending == 'json' else 'plot'}"
        if name := choose_path(self.dialog.window, "save", title, Path(), (f".{ending}",), f"benchmark.{ending}"):
            self.save(ending, Path(name))

    def _choose_before(self) -> None:
        if name := choose_path(self.dialog.window, "open", "Compare with an earlier result", Path(), (".json",)):
            self.compare(Path(name))


class BenchmarkOptions:
    """A row of fields in `parent`."""

    def __init__(self, parent: tk.Misc) -> None:
        row = frame(parent)
        row.pack(fill="x", pady=(0, theme.px(10)))
        self.entries: dict[str, Entry] = {}
        for name, title, shown, tip in _FIELDS:
            label = text(row, title)
            label.pack(side="left", padx=(0, theme.px(8)))
            entry = Entry(row, width=110)
            entry.show(shown)
            entry.pack(side="left", padx=(0, theme.px(20)))
            for widget in (label, entry):
                add_tooltip(widget, tip)
            self.entries[name] = entry
        hint = frame(row)
        hint.pack(side="left", fill="x", expand=True)
        label = text(hint, _EMPTY, colour=theme.MUTED, wrap=_HINT_WIDTH)
        wrap_within(label, hint, margin=0)
        label.pack(anchor="w")

    def arguments(self) -> list[str]:
        """The options of the program. Raises ValueError, whose text names the field, for a number that is none."""
        found: list[str] = []
        for name, title, *_ in _FIELDS:
            words = self.entries[name].get().replace(",", " ").split()
            if wrong := [word for word in words if not (word.isdecimal() and 1 <= int(word) <= MOST_STEPS)]:
                raise ValueError(f"{title}: {wrong[0]!r} is no whole number from 1 to {MOST_STEPS:,}.")
            if name == "steps" and len(words) > 1:
                raise ValueError("Steps: give one number, such as 30.")
            if words:
                found += [f"--{name}", *words]
        return found


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
        show_output(self._output, output)

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
