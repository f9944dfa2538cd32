"""The Runs page: a table of all runs to find, follow, resume, compare, rename, note and delete."""

from __future__ import annotations

import tempfile
import time
import tkinter as tk
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from app.monitor.compare import RunComparison
from app.monitor.page import Page
from app.monitor.run_edits import RunEdits
from app.monitor.run_list import RunList, RunSummary
from app.open_path import show_page
from app.runs.status import LEFT
from app.widgets import theme
from app.widgets.buttons import Button, Entry, add_tooltip, card, frame, handler, text
from app.widgets.message_line import MessageLine
from app.widgets.table import table
from app.windows.backups import BackupsWindow
from app.windows.run_folders import RunFoldersWindow
from modules.config import TandemError, load_config
from modules.run import RunFolder
from modules.run.format_duration import format_duration
from modules.run.html_report import write_report

_SCAN_S: Final = 2.0
_SAID_S: Final = 12.0  # how long what was done stays in place of the hint
_HINT: Final = "Select a run; select two or more to compare them."
_BOTH_FROM: Final = 540  # unscaled height of a page with room for the list and a comparison below it
_DASH: Final = "-"
_COLUMNS: Final[Mapping[str, tuple[str, int]]] = {
    "name": ("Run", 230),
    "state": ("State", 150),
    "started": ("Started", 104),
    "steps": ("Step", 108),
    "loss": ("Loss", 64),
    "validation_loss": ("Validation", 84),
    "length": ("Duration", 76),
    "notes": ("Notes", 170),
}


class RunsPage(Page):
    """Scans the folders every two seconds, in a thread."""

    def build(self) -> None:
        """Search and table above; actions on the selected runs, or their comparison, below."""
        self._list = RunList()
        self._scanned_at = 0.0
        self._is_scanning = False
        self._said_until = 0.0
        self.comparison: RunComparison | None = None
        self._prefers_comparison = False  # to the list, where only one of them has room
        # of the page before a change of scale; to be selected when the list has them
        self._selected_before = cast("Sequence[str]", self.state.typed["runs"].get("selected", ()))
        self._upper = upper = card(self)
        upper.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        self._build_search(upper)
        holder = frame(upper)
        holder.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))
        self.rows = RunTable(holder, self.search.get())
        self.table = self.rows.tree
        self.edits = RunEdits(self, self.state, lambda: self.selected, self._say, self.scan_now)
        self.table.bind("<<TreeviewSelect>>", lambda event: self._on_select())
        for sequence in ("<Double-Button-1>", "<Return>"):
            self.table.bind(sequence, lambda event: self.follow_selected())
        self.table.bind("<F2>", handler(self.edits.rename))
        self.table.bind("<Delete>", handler(self.edits.delete))
        self.table.bind("<Control-f>", handler(self.search.focus_set))
        self.table.bind("<Button-3>", self._right_click)
        self.bar = RunsBar(self, self)
        # at the lower edge whatever is above it, which gets the room that is left
        self.bar.pack(side="bottom", fill="x", padx=theme.px(6), pady=(0, theme.px(6)), before=upper)
        self._on_select()
        self.bind("<Configure>", lambda event: self._arrange(), add="+")

    @property
    def runs(self) -> Mapping[str, RunSummary]:
        """All runs by their key in the table."""
        return self.rows.runs

    def refresh(self) -> None:
        """Scan the folders if it is time."""
        if self.comparison is not None and self.comparison.winfo_ismapped():
            self.comparison.refresh()
        if self._is_scanning or time.monotonic() - self._scanned_at < _SCAN_S:
            return
        self._is_scanning = True
        folders = self.folders
        self.state.background.run(lambda: self._list.scan_folders(folders), self._show)

    def scan_now(self) -> None:
        """Scan the folders at the next refresh."""
        self._scanned_at = 0.0

    @property
    def runs_dir(self) -> Path:
        """The folder of the followed run, or else that of the settings."""
        if self.run is not None:
            return self.run.folder.path.parent
        return self.state.runs_dir.absolute()

    @property
    def folders(self) -> list[Path]:
        """All folders whose runs are listed, as they are written."""
        of_settings = self.state.runs_dir.absolute()
        return list(dict.fromkeys([self.runs_dir, of_settings, *map(Path, self.state.preferences.runs_folders)]))

    @property
    def selected(self) -> list[RunSummary]:
        """The selected runs in table order."""
        return self.rows.selected

    def select(self, names: list[str]) -> None:
        """Select runs by name."""
        self.rows.select(names)

    def _build_search(self, upper: tk.Misc) -> None:
        line = frame(upper)
        line.pack(fill="x", padx=theme.px(10), pady=(theme.px(8), 0))
        self.search = Entry(line, self._find, width=320, placeholder="Search runs by name, state, tag or note")
        self.search.show(str(self.state.typed["runs"].get("search", "")))
        self.search.line.bind("<Escape>", handler(self._clear_search))
        self.search.line.bind("<Down>", handler(self.table_focus))
        self.count = text(line, "", "small", colour=theme.MUTED)
        self.folders_button = Button(
            line,
            "Folders…",
            self._show_folders,
            icon="folder",
            style="quiet",
            bg=theme.CARD,
            tooltip="List the runs of other folders, too, such as those on another disk.",
        )
        self.compare_button = Button(line, "Compare", lambda: self.show_comparison(True), bg=theme.CARD)
        self.folders_button.pack(side="right")
        self.search.pack(side="left", fill="x")
        self.count.pack(side="left", padx=theme.px(12))

    def table_focus(self) -> None:
        """Go from the search to the table, where a run is selected."""
        rows = self.table.get_children()
        if rows and not self.table.selection():
            self.table.selection_set(rows[0])
            self.table.focus(rows[0])
        self.table.focus_set()

    def _show(self, found: list[RunSummary]) -> None:
        self._is_scanning, self._scanned_at = False, time.monotonic()
        if not self.winfo_exists():
            return
        self.rows.show(found)
        if keys := [key for key, run in self.runs.items() if run.path == self.edits.renamed]:
            self.edits.renamed = None
            self.rows.select(keys)
            self.table.focus(keys[0])
        if self._selected_before:
            self.rows.select(self._selected_before)
            self._selected_before = ()
        self._on_rows()

    def _find(self, words: str) -> None:
        self.state.typed["runs"]["search"] = words  # for the page that a change of scale builds anew
        self.rows.search(words)
        self._on_rows()

    def _clear_search(self) -> None:
        self.search.show("")
        self._find("")
        self.table.focus_set()

    def _on_rows(self) -> None:
        shown, total = self.rows.count, len(self.runs)
        count = "" if shown == total else f"{shown:,} of {total:,} runs"
        if self.count.cget("text") != count:
            self.count.configure(text=count)
        self.bar.offer_undo(bool(self.state.trashed_runs))
        self._show_message()

    def _on_select(self) -> None:
        selected = self.selected
        if selected:
            self._said_until = 0.0
        self.bar.show(selected)
        self.state.typed["runs"]["selected"] = self.table.selection() or self._selected_before
        if len(selected) < 2:
            self._prefers_comparison = False
        elif self.comparison is None:
            self.comparison = RunComparison(self, self.state, lambda: self.show_comparison(False))
        self._arrange()
        self._show_message()
        if self.comparison is not None and len(selected) > 1:
            self.comparison.show(self.rows.names(selected))

    def show_comparison(self, shown: bool) -> None:
        """In a low window: show the comparison in place of the list, or the list again."""
        self._prefers_comparison = shown
        self._arrange()
        self._show_message()
        (self.comparison.back if shown and self.comparison is not None else self.table).focus_set()

    @property
    def _is_low(self) -> bool:
        return 1 < self.winfo_height() < theme.px(_BOTH_FROM)

    def _arrange(self) -> None:
        """The list, and below it the comparison of the selected runs; in a low window one of them."""
        compares = self.comparison is not None and len(self.selected) > 1
        shows_comparison = compares and (self._prefers_comparison or not self._is_low)
        if shows_comparison and self._is_low:
            self._upper.pack_forget()
        else:
            self._upper.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        if compares and self._is_low:
            self.compare_button.pack(side="right", padx=(0, 8), before=self.search)
        else:
            self.compare_button.pack_forget()
        if self.comparison is None:
            return
        self.comparison.offer_back(self._is_low)
        if shows_comparison:
            self.comparison.pack(fill="both", expand=True)
        else:
            self.comparison.pack_forget()

    def _show_message(self) -> None:
        selected = self.selected
        if time.monotonic() < self._said_until:
            return
        if not self.runs:
            message = f"No runs in {self.runs_dir} yet."
        elif not self.rows.count:
            message = f"No run matches “{self.search.get()}”."
        elif len(selected) == 1 and selected[0].status.problem is not None:
            message = selected[0].status.problem.text.split("\n")[0]
        elif len(selected) == 1 and selected[0].notes.line:
            message = selected[0].notes.line
        elif len(selected) == 1:
            message = "  ·  ".join(filter(None, (selected[0].status.detail, str(selected[0].path))))
        elif selected and self._is_low and not self._prefers_comparison:
            message = f"{len(selected)} runs are selected: press Compare."
        else:
            message = f"Comparing {len(selected)} runs." if selected else _HINT
        self.bar.message.say(message)

    def _say(self, message: str) -> None:
        self._said_until = time.monotonic() + _SAID_S
        self.bar.message.say(message)
        self.bar.offer_undo(bool(self.state.trashed_runs))

    def _right_click(self, event: tk.Event[tk.Misc]) -> None:
        row = self.table.identify_row(event.y)
        if row and row not in self.table.selection():
            self.table.selection_set(row)
        if row:
            self.edits.show_menu(event.x_root, event.y_root)

    def undo_delete(self) -> None:
        """Take back what was deleted last."""
        self.edits.undo_delete()

    def show_menu(self) -> None:
        """All that can be done with the selected runs, below the button for it."""
        button = self.bar.more
        self.edits.show_menu(button.winfo_rootx(), button.winfo_rooty() + button.winfo_height())

    def _show_folders(self) -> None:
        RunFoldersWindow(self, self.state, self.runs_dir, self.scan_now).show()

    def follow_selected(self) -> None:
        """Show the selected run in the monitor and the run bar."""
        if len(self.selected) == 1:
            self.state.actions.follow(self.selected[0].path)

    def resume_selected(self) -> None:
        """Resume the selected run."""
        if len(self.selected) == 1:
            self.state.actions.resume_in(RunFolder(self.selected[0].path))

    def show_backups(self) -> None:
        """Show what the selected run can continue from."""
        if len(self.selected) == 1:
            BackupsWindow(self, self.state, RunFolder(self.selected[0].path)).show()

    def show_report(self) -> None:
        """Write the report anew, which a run does only at its end, and open it in the browser."""
        if len(self.selected) != 1:
            return
        folder = RunFolder(self.selected[0].path)

        def write() -> Path:
            try:
                return write_report(folder)
            except OSError:  # a disk that may only be read; what lies there may be anybody's page
                return write_report(folder, Path(tempfile.mkdtemp(prefix="tandem-report-")) / folder.report_file.name)

        def failed(reason: str) -> None:
            self._say(f"The report cannot be written: {reason}")

        def done(file: Path) -> None:
            show_page(self.state, file, self._say)

        self.state.background.run(write, done, failed)

    def open_settings(self) -> None:
        """Edit a copy of the selected run's settings."""
        if len(self.selected) != 1:
            return
        file = RunFolder(self.selected[0].path).config_file
        try:
            config = load_config(file)
        except (TandemError, OSError) as error:
            self._say(str(error).split("\n")[0])
        else:
            self.state.files.open_copy(config, self.selected[0].name)


class RunTable:
    """`runs` has all runs by their key: the name, or the path of a second one of the same name."""

    def __init__(self, holder: tk.Misc, searched: str = "") -> None:
        self.runs: dict[str, RunSummary] = {}
        self._words = _words(searched)
        self._places: Mapping[Path, str] = {}
        self.tree = table(holder, _COLUMNS, ("steps", "loss", "validation_loss", "length"), names=("name",))
        self.tree.configure(selectmode="extended", height=6)
        theme.follow(self.tree, "tones", self._colour_rows)

    @property
    def selected(self) -> list[RunSummary]:
        """The selected runs in table order."""
        return [self.runs[key] for key in self.tree.selection() if key in self.runs]

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.tree.get_children())

    def names(self, runs: Sequence[RunSummary]) -> dict[Path, str]:
        """Names for these runs by their folders: where two are equal, as the table shows them."""
        counts = Counter(run.name for run in runs)
        return {run.path: run.name if counts[run.name] == 1 else self._title(run) for run in runs}

    def select(self, keys: Sequence[str]) -> None:
        """Select rows."""
        self.tree.selection_set([key for key in keys if self.tree.exists(key)])

    def search(self, text: str) -> None:
        """Show only runs whose name, folder, state, tags or note hold all these words."""
        self._words = _words(text)
        self._fill()

    def show(self, found: Sequence[RunSummary]) -> None:
        """Show these runs; the selection and the scroll position stay."""
        self.runs = {}
        for summary in found:
            self.runs[str(summary.path) if summary.name in self.runs else summary.name] = summary
        self._fill()

    def _title(self, run: RunSummary) -> str:
        """A run's name, with that of its folder if the runs of several are listed."""
        place = self._places.get(run.path.parent, "")
        return f"{run.name}  ({place})" if place else run.name

    def _fill(self) -> None:
        shown = {key: summary for key, summary in self.runs.items() if _matches(summary, self._words)}
        gone = [key for key in self.tree.get_children() if key not in shown]
        if gone:
            self.tree.delete(*gone)
        none = "No run matches these words." if self.runs else "There are no runs yet."
        self.tree.say("" if shown else none)
        self._places = _short_names({summary.path.parent for summary in self.runs.values()})
        for index, (key, summary) in enumerate(shown.items()):
            values = (self._title(summary), *_figures(summary))
            if not self.tree.exists(key):
                self.tree.insert("", index, iid=key, values=values, tags=(summary.status.tone,))
            elif tuple(map(str, self.tree.item(key, "values"))) != values:
                self.tree.item(key, values=values, tags=(summary.status.tone,))
        order = tuple(shown)
        if self.tree.get_children() != order:
            for index, key in enumerate(order):
                self.tree.move(key, "", index)

    def _colour_rows(self) -> None:
        for tone, colour in (("bad", theme.BAD), ("busy", theme.ACCENT_TEXT)):
            self.tree.tag_configure(tone, foreground=theme.resolve(colour))


def _words(text: str) -> list[str]:
    return text.lower().split()


def _matches(summary: RunSummary, words: Sequence[str]) -> bool:
    tags = " ".join(f"#{tag}" for tag in summary.notes.tags)
    text = f"{summary.path} {summary.status.title} {tags} {summary.notes.note}".lower()
    return all(word in text for word in words)


def _short_names(folders: Collection[Path]) -> dict[Path, str]:
    """Empty names for one folder; else their own ones, with that of the folder above where they would be equal."""
    if len(folders) < 2:
        return dict.fromkeys(folders, "")
    counts = Counter(folder.name for folder in folders)
    return {each: each.name if counts[each.name] == 1 else f"{each.parent.name}/{each.name}" for each in folders}


def _figures(summary: RunSummary) -> tuple[str, ...]:
    """What follows the name in its row."""
    started = time.strftime("%d %b %H:%M", time.localtime(summary.started)) if summary.started else _DASH
    steps = _DASH
    if summary.step is not None:
        total = f" of {summary.total_steps:,}" if summary.total_steps else ""
        steps = f"{summary.step:,}{total}"
    return (
        summary.status.title,
        started,
        steps,
        _DASH if summary.loss is None else f"{summary.loss:.4g}",
        _DASH if summary.validation_loss is None else f"{summary.validation_loss:.4g}",
        format_duration(summary.duration_s) if summary.duration_s else _DASH,
        summary.notes.line,
    )


class RunsBar(tk.Frame):
    """`show` allows what can be done with the selected runs, `offer_undo` shows a button that takes back a deletion."""

    def __init__(self, parent: tk.Misc, actions: RunsPage) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._is_left = False  # whether the selected run waits on another machine
        self._complete = ""  # the selected run's name, if there is nothing to resume
        row = frame(self, theme.WINDOW)
        row.pack(fill="x", pady=(0, theme.px(6)))
        self._build_buttons(row, actions)
        self.message = MessageLine(self)
        self.message.pack(fill="x")

    def show(self, selected: Sequence[RunSummary]) -> None:
        """Allow what can be done with these."""
        only = selected[0] if len(selected) == 1 else None
        for button in (self.follow, self.settings, self.backups, self.report):
            button.configure(state="normal" if only is not None else "disabled")
        self._complete = only.name if only is not None and only.status.is_complete else ""
        self._is_left = only is not None and only.status.kind in LEFT
        can_resume = only is not None and only.status.can_resume and not self._complete
        self.resume.configure(state="normal" if can_resume else "disabled")
        self.more.configure(state="normal" if selected else "disabled")

    def _help_of_resume(self) -> str:
        if self._complete:
            return (
                f"{self._complete} is complete. To train it further, open its settings, raise its epochs or maximum "
                f"steps, set the run name to {self._complete}, and press Train."
            )
        if self._is_left:
            return "Go on with what is left of this run on the other machine."
        return "Continue from the newest backup, with the run's own settings."

    def offer_undo(self, offered: bool) -> None:
        """Show the button that takes back what was deleted, or hide it."""
        if offered and not self.undo.winfo_manager():
            self.undo.pack(side="right")
        elif not offered and self.undo.winfo_manager():
            self.undo.pack_forget()

    def _build_buttons(self, row: tk.Frame, actions: RunsPage) -> None:
        def button(label: str, command: Callable[[], object], icon: str, tooltip: str = "") -> Button:
            made = Button(row, label, command, icon=icon, tooltip=tooltip)
            made.pack(side="left", padx=(0, 8))
            return made

        self.follow = button("Follow", actions.follow_selected, "monitor", "Show it in the monitor and the run bar.")
        self.resume = button("Resume", actions.resume_selected, "refresh")
        add_tooltip(self.resume, self._help_of_resume)
        self.settings = button(
            "Open settings", actions.open_settings, "presets", "Edit a copy of the settings this run was started with."
        )
        self.backups = button(
            "Backups…",
            actions.show_backups,
            "backup",
            "What this run can continue from, with step and size: check it, go back, or free disk space.",
        )
        self.report = button(
            "Report",
            actions.show_report,
            "file",
            "Curves, samples, warnings, devices and settings of this run as one page in the browser.",
        )
        self.more = button(
            "More", actions.show_menu, "down", "Result, name, tags and notes, folder, debug package, trash."
        )
        self.undo = Button(row, "Undo", actions.undo_delete, icon="undo", tooltip="Take them back from the trash.")
