"""The page of the log: all sources or one, all levels or the bad ones, and a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app import look, texts
from app.controls import Button, Entry, Menu, card, frame, text
from app.monitor.line_list import LineList
from app.monitor.log_reader import CONSOLE, LAUNCHER, LogLine, LogReader
from app.monitor.page import Page
from app.run_facts import Message

_ALL: Final = "all"
_LEVELS: Final = {"all": ("info", "warning", "error"), "warning": ("warning", "error"), "error": ("error",)}


class LogPage(Page):
    """Only new lines are filtered, except where the filter changes."""

    def build(self) -> None:
        """Filters above, lines in a card."""
        self.reader: LogReader | None = None
        self.found: list[LogLine] = []
        self._read = 0  # how many of the reader's lines have been filtered, the dropped ones counted
        self._goal: Message | None = None
        bar = frame(self, look.WINDOW)
        bar.pack(fill="x", padx=look.px(6), pady=(0, look.px(8)))
        titles = {_ALL: texts.LOG_ALL, CONSOLE: texts.LOG_CONSOLE, LAUNCHER: texts.LOG_LAUNCHER}
        titles |= {str(rank): texts.RANK.format(rank=rank) for rank in range(600)}
        self.source = Menu(bar, [_ALL], lambda value: self.filter(), on=look.WINDOW, width=150, titles=titles)
        self.source.show(_ALL)
        self.source.pack(side="left")
        self.level = Menu(
            bar, list(_LEVELS), lambda value: self.filter(), on=look.WINDOW, width=170, titles=dict(texts.LOG_LEVELS)
        )
        self.level.show("all")
        self.level.pack(side="left", padx=look.px(8))
        self.search = Entry(bar, lambda words: self.filter(), on=look.WINDOW, width=240, placeholder=texts.LOG_SEARCH)
        self.search.pack(side="left")
        self.count = text(bar, "", "small", colour=look.MUTED, on=look.WINDOW)
        self.count.pack(side="left", padx=look.px(12))
        self.end = Button(bar, texts.LOG_END, lambda: self.lines.to_end(), icon="down", style="quiet")
        holder = card(self)
        holder.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        self.lines = LineList(holder, self._scrolled)
        self.lines.pack(fill="both", expand=True, padx=look.px(4), pady=look.px(4))
        self.bind("<Map>", lambda event: self._awaken(True))
        self.bind("<Unmap>", lambda event: self._awaken(False))

    def followed(self) -> None:
        """Another run."""
        self.close()
        self.reader = None if self.run is None else LogReader(self.run.folder)
        self.found, self._read = [], 0
        self._awaken(bool(self.winfo_ismapped()))
        self.source.show(_ALL)
        self.filter()

    def refresh(self) -> None:
        """Show what has come."""
        reader = self.reader
        if reader is None:
            return
        with reader.lock:
            total = reader.dropped + len(reader.lines)
            new = reader.lines[max(0, self._read - reader.dropped) :]
            sources = reader.sources
        offered = (_ALL, *sources)
        if self.source.choices != offered:
            self.source.offer(offered)
        if not new and total == self._read:
            return
        self._read = total
        fresh = self._filtered(new)
        self.found.extend(fresh)
        surplus = max(0, len(self.found) - 60_000)
        del self.found[:surplus]
        if fresh or surplus:
            self.lines.show(self.found, surplus)
        self._say()
        self._go_to_failure()

    def filter(self) -> None:
        """Show what the filters let through, of all that is kept."""
        reader = self.reader
        kept: list[LogLine] = []
        if reader is not None:
            with reader.lock:
                kept = list(reader.lines)
                self._read = reader.dropped + len(reader.lines)
        self.found = self._filtered(kept)
        self.lines.chosen = None
        self.lines.show(self.found)
        self._say()

    def only(self, level: str) -> None:
        """Show lines of this level or worse."""
        self.level.show(level)
        self.filter()

    def show_failure(self, problem: Message) -> None:
        """Show the log of the rank that failed, at the line where it says so."""
        self._goal = problem
        self.level.show("all")
        self.search.show("")
        self.filter()
        self._go_to_failure()

    def close(self) -> None:
        """End the thread."""
        if self.reader is not None:
            self.reader.close()

    def _go_to_failure(self) -> None:
        problem, reader = self._goal, self.reader
        if problem is None or reader is None or not reader.is_caught_up.is_set():
            return
        source = None if problem.rank is None else str(problem.rank)
        place = failure_line(self.found, source, problem.text)
        if place is not None:
            self._goal = None
            self.lines.see(place)

    def _filtered(self, lines: Sequence[LogLine]) -> list[LogLine]:
        source, levels, words = self.source.value(), _LEVELS[self.level.value()], self.search.get().lower()
        return [
            line
            for line in lines
            if (source in (_ALL, line.source)) and line.level in levels and (not words or words in line.text.lower())
        ]

    def _say(self) -> None:
        words = texts.LOG_COUNT.format(count=len(self.found)) if self.found else texts.LOG_NOTHING
        if self.reader is not None and (self.reader.dropped or self.reader.skipped_bytes):
            words += texts.LOG_PASSED_OVER
        self.count.configure(text=words)

    def _scrolled(self, follows: bool) -> None:
        if follows:
            self.end.pack_forget()
        elif not self.end.winfo_manager():
            self.end.pack(side="right")

    def _awaken(self, awake: bool) -> None:
        if self.reader is not None:
            self.reader.awaken(awake)


def failure_line(lines: Sequence[LogLine], source: str | None, message: str) -> int | None:
    """Where a failure is told: the last line with its message, else the last traceback, else the last bad line."""
    own = [place for place, line in enumerate(lines) if source is None or line.source == source] or list(
        range(len(lines))
    )
    first = message.strip().split("\n")[0][:80]
    for wanted in (
        lambda line: bool(first) and first in line.text,
        lambda line: "Traceback (most recent call last)" in line.text,
        lambda line: line.level == "error",
    ):
        place = next((place for place in reversed(own) if wanted(lines[place])), None)
        if place is not None:
            return place
    return own[-1] if own else None
