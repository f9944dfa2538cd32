"""The benchmark of the current settings, run in a child process: its table, its plot, and another result beside it."""

from __future__ import annotations

import os
import re
import tkinter as tk
from functools import partial
from pathlib import Path
from typing import Final

from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Entry, add_tooltip, frame, popup_menu, text, wrap_within
from app.windows.benchmark_pages import SIZE, BenchmarkPages
from app.windows.child_program import ProgramWindow
from app.windows.chooser import choose_path
from modules import ROOT
from modules.config import ConfigError, save_config
from modules.files import FileFault, open_for_writing, printable, read_bytes, replacing
from modules.run.benchmark.records import MOST_STEPS, BenchmarkResult
from modules.run.exit_codes import FINISHED, INTERRUPTED

SCRIPT: Final = ROOT / "scripts" / "benchmark.py"
_CASE: Final = re.compile(r"^Case \d+ of \d+: .*$", re.MULTILINE)


class BenchmarkWindow(ProgramWindow):
    """Runs scripts/benchmark.py with the current settings."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(
            parent,
            state,
            "Benchmark",
            "Times the steps of these settings on one GPU, on more of them and with other batch sizes, then on the "
            "machines that Train starts over ssh. Nothing is saved or validated. “Of peak”: floating-point "
            "operations (FLOPs), of the most that the device can do.",
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
        config = self.state.draft.config
        if config is None:
            self.show_status(INVALID_SETTINGS, theme.BAD)
            return
        if self.child is not None:
            return
        try:
            arguments = [*self.options.arguments(), *self.hosts(config)]
        except (ValueError, ConfigError) as error:
            self.show_status(str(error), theme.BAD)
            return
        file, self._found, self._picture = self.file("config.json"), self.file("result.json"), self.file("plot.png")
        for old in (self._found, self._picture):
            old.unlink(missing_ok=True)
        save_config(config, file)
        self.result = None
        self.button.configure(text="Stop")
        self.show_status("Starting…", theme.MUTED)
        named = ["--name", self.state.draft.file.name if self.state.draft.file else "unsaved settings"]
        files = ["--json", str(self._found), "--plot", str(self._picture), *(["--dark"] if theme.is_dark() else [])]
        self.run(SCRIPT, ["--config", str(file), *named, *files, *arguments])
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
                self._save_plot(file)
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

    def _save_plot(self, file: Path) -> None:
        with replacing(file) as unfinished, os.fdopen(open_for_writing(unfinished), "wb") as target:
            target.write(read_bytes(self._picture))

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


_EMPTY: Final = "Empty: 1, 2, 4, … and all that these settings start, with their own batch size."
_HINT_WIDTH: Final = 240  # unscaled, until it is known how much is left
_FIELDS: Final = (
    ("steps", "Steps", "30", "How many optimizer steps are measured in each case, after 10 that are not."),
    ("ranks", "Processes", "", "Such as 1 2 4: how many processes, each with a GPU if there are any."),
    ("batch_sizes", "Batch sizes", "", "Such as 1 2 4 8: also these, on the fewest processes."),
)  # option of the program, title, first content, help


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
