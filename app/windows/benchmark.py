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

from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Entry, Segments, add_tooltip, frame, popup_menu, text
from app.widgets.table import Table, table
from app.windows.child_program import ProgramWindow
from app.windows.chooser import choose_path
from modules import ROOT
from modules.config import save_config
from modules.files import FileFault, open_for_writing, printable, read_bytes
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
)
from modules.run.exit_codes import FINISHED, INTERRUPTED

SCRIPT: Final = ROOT / "scripts" / "benchmark.py"
_PAGES: Final = ("Table", "Plot", "Comparison", "Output")
_SHOWN_CHARACTERS: Final = 20_000
_SIZE: Final = (1000, 330)  # of a page
_CASE: Final = re.compile(r"^Case \d+ of \d+: .*$", re.MULTILINE)
_MAX_LINES: Final = 4  # below the pages
_EMPTY: Final = "Empty: 1, 2, 4, … and all that these settings start, with their own batch size."
_NOTHING_COMPARED: Final = "Choose an earlier result with Compare…; Save… keeps this one for later."


class BenchmarkWindow(ProgramWindow):
    """Runs scripts/benchmark.py with the current settings."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(
            parent,
            state,
            "Benchmark",
            "Times the steps of these settings: how much more GPUs and other batch sizes bring. Nothing is saved or "
            "validated.",
        )
        self.result: BenchmarkResult | None = None
        self.before: BenchmarkResult | None = None
        self._plot: ImageTk.PhotoImage | None = None
        self._is_stopping = False
        self._add_options()
        self.status = text(self.dialog.body, font="strong", wrap=_SIZE[0])
        self.status.pack(anchor="w", pady=(0, theme.px(8)))
        self.choice = Segments(self.dialog.body, _PAGES, self._turn_to, bg=theme.CARD)
        self.choice.pack(anchor="w", pady=(0, theme.px(8)))
        self._add_pages()
        self.dialog.button("Close", self.dialog.close)
        self.saving = self.dialog.button("Save…", self._offer_files)
        self.dialog.button("Compare…", self._choose_before)
        self.button = self.dialog.button("Measure", self._start_or_stop, "accent")
        self._turn_to("Table")
        self._show_result()

    def show(self) -> tk.Toplevel:
        """Open the window; measuring, which takes minutes, starts by its button."""
        return self.dialog.show()

    def start(self) -> None:
        """Measure the current settings."""
        config = self.state.draft.config
        if config is None:
            self.show_status(INVALID_SETTINGS, theme.BAD)
            return
        if self.child is not None:
            return
        arguments = self._arguments()
        if arguments is None:
            return
        file, self._found, self._picture = self.file("config.json"), self.file("result.json"), self.file("plot.png")
        for old in (self._found, self._picture):
            old.unlink(missing_ok=True)
        save_config(config, file)
        self.result, self._plot, self._is_stopping = None, None, False
        self._show_result()
        self.button.configure(text="Stop")
        self.show_status("Starting …", theme.MUTED)
        named = ["--name", self.state.draft.file.name if self.state.draft.file else "unsaved settings"]
        files = ["--json", str(self._found), "--plot", str(self._picture), *(["--dark"] if theme.is_dark() else [])]
        self.run(SCRIPT, ["--config", str(file), *named, *files, *arguments])

    def progressed(self, output: str) -> None:
        """Show which case is measured, the cases that were, and what the program says."""
        if (cases := _CASE.findall(output)) and not self._is_stopping:
            self.show_status(f"{printable(cases[-1])} …", theme.MUTED)
        self._load()
        _write(self.output, printable(output[-_SHOWN_CHARACTERS:], _SHOWN_CHARACTERS, lines=True))

    def ended(self, exit_code: int, output: str) -> None:
        """Show the result, or why there is none."""
        self.button.configure(text="Measure again")
        self._load()
        if exit_code == FINISHED:
            self.show_status("All cases were measured.", theme.GOOD)
        elif exit_code == INTERRUPTED or self._is_stopping:
            self.show_status("Stopped." if self.result is None else "Stopped; the cases before are shown.", theme.MUTED)
        elif self.result is None:
            self.show_status("Nothing was measured: see Output.", theme.BAD)
            self._turn_to("Output")
        else:
            self.show_status("A case has failed; its row says why.", theme.BAD)
        if self._picture.is_file():
            self._show_plot(self._picture)

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
        self._show_comparison()
        self._turn_to("Comparison")

    def save(self, ending: str, file: Path) -> None:
        """Keep the result (json) or the plot (png). A file in the way was agreed to be replaced."""
        try:
            if ending == "json" and self.result is not None:
                self.result.save(file)
            elif ending == "png":
                self._save_plot(file)
        except OSError as error:
            self.show_status(f"{printable(file)} cannot be written: {error.strerror or error}.", theme.BAD)
            return
        self.show_status(f"Saved to {printable(file.name)}.", theme.GOOD)

    def _save_plot(self, file: Path) -> None:
        partial = file.with_name(f".partial-{os.getpid()}-{file.name}")
        try:
            with os.fdopen(open_for_writing(partial), "wb") as target:
                target.write(read_bytes(self._picture))
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)

    # Building

    def _add_options(self) -> None:
        head = frame(self.dialog.body)
        head.pack(fill="x", pady=(0, theme.px(10)))
        self.entries: dict[str, Entry] = {}
        for name, title, shown, tip in (
            ("steps", "Steps", "30", "How many optimizer steps are measured in each case, after 10 that are not."),
            ("ranks", "Processes", "", "Such as 1 2 4: how many processes, each with a GPU if there are any."),
            ("batch_sizes", "Batch sizes", "", "Such as 1 2 4 8: also these, on the fewest processes."),
        ):
            label = text(head, title)
            label.pack(side="left", padx=(0, theme.px(8)))
            entry = Entry(head, width=110)
            entry.show(shown)
            entry.pack(side="left", padx=(0, theme.px(20)))
            for widget in (label, entry):
                add_tooltip(widget, tip)
            self.entries[name] = entry

        hint = text(head, _EMPTY, colour=theme.MUTED)
        hint.pack(side="left")

    def _add_pages(self) -> None:
        holder = frame(self.dialog.body)
        holder.configure(width=theme.px(_SIZE[0]), height=theme.px(_SIZE[1]))
        holder.pack_propagate(False)
        holder.pack(fill="both", expand=True)
        self.pages = {name: frame(holder) for name in _PAGES}
        self.table = _numbers(self.pages["Table"], HEADS)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._show_note())
        self.picture = tk.Label(self.pages["Plot"], borderwidth=0, text="")
        theme.paint(self.picture, bg=theme.CARD, fg=theme.MUTED)
        self.picture.pack(fill="both", expand=True)
        self.compared = _numbers(self.pages["Comparison"], COMPARED_HEADS)
        self.output = tk.Text(
            self.pages["Output"], wrap="word", borderwidth=0, highlightthickness=0, state="disabled", height=1
        )
        theme.paint(self.output, bg=theme.FIELD, fg=theme.TEXT)
        self.output.configure(font=theme.font("mono"), padx=theme.px(12), pady=theme.px(10))
        self.output.pack(fill="both", expand=True)
        self.note = text(self.dialog.body, colour=theme.MUTED, wrap=_SIZE[0])
        self.note.configure(height=2, anchor="nw")
        self.note.pack(fill="x", pady=(theme.px(8), 0))

    def _turn_to(self, page: str) -> None:
        self.choice.set(page)
        for name, widget in self.pages.items():
            if name == page:
                widget.pack(fill="both", expand=True)
            else:
                widget.pack_forget()
        self._show_note()

    # Showing

    def _load(self) -> None:
        """The result as far as it has come; the file may be half written."""
        try:
            found = BenchmarkResult.load(self._found)
        except (OSError, FileFault):
            return
        if self.result is None or len(found.cases) != len(self.result.cases):
            self.result = found
            self._show_result()

    def _show_result(self) -> None:
        _fill(self.table, [] if self.result is None else result_rows(self.result))
        self.picture.configure(image="", text="The plot is drawn when all cases are measured.")
        self.saving.configure(state="disabled" if self.result is None else "normal")
        self._show_comparison()

    def _show_plot(self, file: Path) -> None:
        with open_image(file) as opened:
            image = opened.convert("RGB")
        image.thumbnail((theme.px(_SIZE[0]), theme.px(_SIZE[1])), Image.Resampling.LANCZOS)
        self._plot = ImageTk.PhotoImage(image, master=self.picture)
        self.picture.configure(image=self._plot, text="")

    def _show_comparison(self) -> None:
        rows: Sequence[Sequence[str]] = []
        if self.before is not None and self.result is not None:
            rows, _ = compared_rows(self.before, self.result)
        _fill(self.compared, rows)
        self._show_note()

    def _show_note(self) -> None:
        """Below the page: the phases of the case that is selected, or what else differs from the earlier result."""
        page, lines = self.choice.get(), list[str]()
        if page == "Table" and self.result is not None and self.result.cases:
            chosen = self.table.selection()
            case = self.result.cases[int(chosen[0]) if chosen else 0]
            found = printable(case.failure) if case.measured is None else f"a step is {phases_line(case.measured)}."
            failed = [case for case in self.result.cases if case.measured is None]
            lines = [f"{name_of(case)}: {found}"]
            lines += [f"{name_of(each)}: {printable(each.failure)}" for each in failed if each is not case]
        elif page == "Comparison":
            lines = [_NOTHING_COMPARED] if self.before is None else []
            if self.before is not None and self.result is not None:
                others = differences(self.before, self.result)
                alone = compared_rows(self.before, self.result)[1]
                lines = [*([f"Not only the speed differs: {'; '.join(others)}."] if others else []), *alone]
        self.note.configure(text="\n".join(lines[:_MAX_LINES]))

    # Buttons

    def _start_or_stop(self) -> None:
        if self.child is None:
            self.start()
            return
        self._is_stopping = True
        self.show_status("Stopping …", theme.MUTED)
        self.child.stop()

    def _offer_files(self) -> None:
        menu = popup_menu(self.dialog.window)
        menu.add_command(label="Save the result as JSON …", command=partial(self._choose_file, "json"))
        if self._plot is not None:
            menu.add_command(label="Save the plot as PNG …", command=partial(self._choose_file, "png"))
        menu.tk_popup(self.saving.winfo_rootx(), self.saving.winfo_rooty() + self.saving.winfo_height())

    def _choose_file(self, ending: str) -> None:
        title = f"Save the {'result' if ending == 'json' else 'plot'}"
        if name := choose_path(self.dialog.window, "save", title, Path(), (f".{ending}",), f"benchmark.{ending}"):
            self.save(ending, Path(name))

    def _choose_before(self) -> None:
        if name := choose_path(self.dialog.window, "open", "Compare with an earlier result", Path(), (".json",)):
            self.compare(Path(name))

    def _arguments(self) -> list[str] | None:
        """The options of the program; None, with a message, for a number that is none."""
        found: list[str] = []
        for name, entry in self.entries.items():
            words = entry.get().replace(",", " ").split()
            if wrong := [word for word in words if not (word.isdecimal() and 1 <= int(word) <= MOST_STEPS)]:
                title = name.replace("_", " ").replace("ranks", "processes").capitalize()
                self.show_status(f"{title}: {wrong[0]!r} is no whole number from 1 to {MOST_STEPS:,}.", theme.BAD)
                return None
            if name == "steps" and len(words) > 1:
                self.show_status("Steps: give one number, such as 30.", theme.BAD)
                return None
            if words:
                found += [f"--{name}", *words]
        return found


def _numbers(parent: tk.Misc, heads: Sequence[str]) -> Table:
    """A table of figures."""
    wide = {"step": 190, "memory": 210} if "change" in heads else {}
    columns = {head: (head[:1].upper() + head[1:], wide.get(head, 110)) for head in heads}
    return table(parent, columns, numbers=list(columns))


def _fill(shown: Table, rows: Sequence[Sequence[str]]) -> None:
    if [tuple(shown.item(item, "values")) for item in shown.get_children()] == [tuple(row) for row in rows]:
        return
    shown.delete(*shown.get_children())
    for number, row in enumerate(rows):
        shown.insert("", "end", iid=str(number), values=tuple(row))


def _write(widget: tk.Text, content: str) -> None:
    if content == widget.get("1.0", "end-1c"):
        return
    widget.configure(state="normal")
    widget.delete("1.0", "end")
    widget.insert("1.0", content)
    widget.see("end")
    widget.configure(state="disabled")
