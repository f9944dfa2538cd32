"""The Log page, filtered by source, level and search text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.monitor.line_list import LineList
from app.monitor.log_reader import CONSOLE, HOST, LAUNCHER, LogLine, LogReader
from app.monitor.page import Page
from app.open_path import show_folder
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Menu, card, frame, text
from modules.run.view.event_records import Message

_ALL: Final = "all"
_LEVELS: Final = {
    "all": ("All levels", ("info", "warning", "error")),
    "warning": ("Warnings and errors", ("warning", "error")),
    "error": ("Errors", ("error",)),
}
_NOTHING: Final = "The log is empty."
_PROBLEMS_FILE: Final = "problems.txt"  # which a run writes, and names in its log
_PROBLEMS: Final = "Data, Problems lists such files of the current settings, and moves unreadable images to the trash."
_NO_MATCH: Final = "No line fits the source, the level and the search above."


class LogPage(Page):
    """Filters only new lines unless the filter changes."""

    def build(self) -> None:
        """Filters above, lines in a card."""
        self.reader: LogReader | None = None
        self.found: list[LogLine] = []
        self._read = 0  # number of the reader's lines that were filtered, including dropped ones
        self._failure: Message | None = None
        bar = frame(self, theme.WINDOW)
        bar.pack(fill="x", padx=theme.px(6), pady=(0, theme.px(8)))
        self.source = Menu(
            bar, [_ALL], lambda value: self.filter(), bg=theme.WINDOW, width=150, titles={_ALL: _title(_ALL)}
        )
        self.source.show(_ALL)
        self.source.pack(side="left")
        titles = {name: title for name, (title, _) in _LEVELS.items()}
        self.level = Menu(bar, list(_LEVELS), lambda value: self.filter(), bg=theme.WINDOW, width=170, titles=titles)
        self._typed = typed = self.state.typed["log"]
        self.level.show(str(typed.get("level", "all")))
        self.level.pack(side="left", padx=theme.px(8))
        self.search = Entry(bar, lambda query: self.filter(), bg=theme.WINDOW, width=240, placeholder="Search the log")
        self.search.show(str(typed.get("search", "")))
        self.search.pack(side="left")
        self.count = text(bar, "", "small", colour=theme.MUTED, bg=theme.WINDOW)
        self.count.pack(side="left", padx=theme.px(12))
        self.folder = Button(
            bar, icon="folder", command=self._show_folder, style="quiet", tooltip="Open the folder of the log files."
        )
        self.folder.pack(side="right")
        self.end = Button(bar, "Jump to end", lambda: self.lines.scroll_to_end(), icon="down", style="quiet")
        self.problems = Button(
            bar,
            "Show problems",
            lambda: self.state.views.problems(),
            icon="data",
            style="quiet",
            tooltip=_PROBLEMS,
        )
        holder = card(self)
        holder.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        self.lines = LineList(holder, self._scrolled)
        self.lines.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))
        self.bind("<Map>", lambda event: self._set_active(True))
        self.bind("<Unmap>", lambda event: self._set_active(False))

    def run_changed(self) -> None:
        """Read the logs of another run."""
        self.close()
        self.reader = None if self.run is None else LogReader(self.run.folder)
        self.found, self._read = [], 0
        self.problems.pack_forget()
        self._set_active(bool(self.winfo_ismapped()))
        is_same = self.run is not None and self._typed.get("folder") == self.run.folder.path
        self.source.show(str(self._typed["source"]) if is_same else _ALL)
        self.filter()

    def refresh(self) -> None:
        """Show new lines."""
        reader = self.reader
        if reader is None:
            return
        with reader.lock:
            total = reader.dropped + len(reader.lines)
            new = reader.lines[max(0, self._read - reader.dropped) :]
            sources = reader.sources
        choices = (_ALL, *sources)
        if self.source.choices != choices:
            self.source.set_choices(choices, {source: _title(source) for source in choices})
        if not new and total == self._read:
            return
        self._read = total
        self._offer_problems(new)
        fresh = self._filtered(new)
        self.found.extend(fresh)
        surplus = max(0, len(self.found) - 60_000)
        del self.found[:surplus]
        self.lines.empty = _NO_MATCH
        if fresh or surplus or not self.found:
            self.lines.show(self.found, surplus)
        self._show_count()
        self._scroll_to_failure()

    def filter(self) -> None:
        """Filter all lines again."""
        self._keep()
        reader = self.reader
        lines: list[LogLine] = []
        if reader is not None:
            with reader.lock:
                lines = list(reader.lines)
                self._read = reader.dropped + len(reader.lines)
        self._offer_problems(lines)
        self.found = self._filtered(lines)
        self.lines.empty = _NO_MATCH if lines else _NOTHING
        self.lines.selection = None
        self.lines.show(self.found)
        self._show_count()

    def _keep(self) -> None:
        """For the page that a change of scale builds anew; the source is one of this run's."""
        folder = None if self.run is None else self.run.folder.path
        self._typed.update(
            source=self.source.value(), level=self.level.value(), search=self.search.get(), folder=folder
        )

    def show_level(self, level: str) -> None:
        """Show only lines of this level and above."""
        self.level.show(level)
        self.filter()

    def show_failure(self, problem: Message) -> None:
        """Scroll to the line that reports the failure."""
        self._failure = problem
        self.level.show("all")
        self.search.show("")
        self.filter()
        self._scroll_to_failure()

    def close(self) -> None:
        """Stop the reader."""
        if self.reader is not None:
            self.reader.close()

    def _show_folder(self) -> None:
        if self.run is not None:
            show_folder(self.state, self.run.folder.log_dir, lambda reason: None)  # the run bar says it, too

    def _scroll_to_failure(self) -> None:
        problem, reader = self._failure, self.reader
        if problem is None or reader is None or not reader.is_caught_up.is_set():
            return
        source = None if problem.rank is None else str(problem.rank)
        index = failure_line(self.found, source, problem.text)
        if index is not None:
            self._failure = None
            self.lines.scroll_to(index)

    def _filtered(self, lines: Sequence[LogLine]) -> list[LogLine]:
        source, levels, query = self.source.value(), _LEVELS[self.level.value()][1], self.search.get().lower()
        return [
            line
            for line in lines
            if (source == line.source or (source == _ALL and not line.is_repeat))
            and line.level in levels
            and (not query or query in line.text.lower())
        ]

    def _show_count(self) -> None:
        label = f"{len(self.found):,} line{'s' * (len(self.found) > 1)}" if self.found else "No lines"
        if self.reader is not None and (self.reader.dropped or self.reader.skipped_bytes):
            label += "; older lines are in the log files"
        self.count.configure(text=label)

    def _scrolled(self, follows: bool) -> None:
        if follows:
            self.end.pack_forget()
        elif not self.end.winfo_manager():
            self.end.pack(side="right")

    def _offer_problems(self, new: Sequence[LogLine]) -> None:
        """A button that leads to the images at fault, once a line has named them."""
        if not self.problems.winfo_manager() and any(_PROBLEMS_FILE in line.text for line in new):
            self.problems.pack(side="right", after=self.folder)

    def _set_active(self, active: bool) -> None:
        if self.reader is not None:
            self.reader.set_active(active)


def _title(source: str) -> str:
    """What the menu says of a source."""
    if source.startswith(HOST):
        return f"Machine {source.removeprefix(HOST)}"
    return {_ALL: "All sources", CONSOLE: "Console output", LAUNCHER: "Launcher"}.get(source, f"Rank {source}")


def failure_line(lines: Sequence[LogLine], source: str | None, message: str) -> int | None:
    """Index of the line that reports a failure: the last with its message, else a traceback, else an error line."""
    candidates = [index for index, line in enumerate(lines) if source is None or line.source == source] or list(
        range(len(lines))
    )
    first_line = message.strip().split("\n")[0][:80]
    for matches in (
        lambda line: bool(first_line) and first_line in line.text,
        lambda line: "Traceback (most recent call last)" in line.text,
        lambda line: line.level == "error",
    ):
        index = next((index for index in reversed(candidates) if matches(lines[index])), None)
        if index is not None:
            return index
    return candidates[-1] if candidates else None
