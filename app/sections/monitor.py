"""The followed run on five pages: curves, processes, samples, log, and all the runs there are."""

from __future__ import annotations

import importlib
import time
import tkinter as tk
from collections.abc import Mapping
from typing import Final

import customtkinter as ctk

from app import look, texts
from app.controls import Button, Segments, add_hint, card, frame, text
from app.cut import cut
from app.monitor.page import Page
from app.monitor.waiting import WaitingCard
from app.run_facts import Message
from app.run_status import Status
from app.state import AppState

REFRESH_MS: Final = 125

# Where each page is, imported when it is first shown; only curves and runs need matplotlib.
_PAGES: Final[Mapping[str, tuple[str, str]]] = {
    "curves": ("app.monitor.curves", "CurvesPage"),
    "ranks": ("app.monitor.ranks", "RanksPage"),
    "samples": ("app.monitor.samples", "SamplesPage"),
    "log": ("app.monitor.log", "LogPage"),
    "runs": ("app.monitor.runs", "RunsPage"),
}


class Section(ctk.CTkFrame):
    """Only the page in sight is refreshed."""

    name = "monitor"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, fg_color=look.WINDOW, bg_color=look.WINDOW, corner_radius=0)
        self.state = state
        self.shown = False
        self.pages: dict[str, Page] = {}
        self.page = "curves"
        self._importing: set[str] = set()
        self._problem: Message | None = None
        self._job = ""
        self._build()
        state.subscribe("run", self._followed, self)

    def show(self) -> None:
        """Come into sight."""
        self.shown = True
        self._followed()
        if not self._job:
            self._tick()

    def hide(self) -> None:
        """Go out of sight."""
        self.shown = False

    def jump_to(self, path: str) -> None:
        """There are no settings here."""

    def destroy(self) -> None:
        """End what the pages have started."""
        if self._job:
            self.after_cancel(self._job)
        for page in self.pages.values():
            page.close()
        super().destroy()

    def open_page(self, name: str) -> None:
        """Show a page; its module is imported in a thread, where that takes time."""
        self.page = name
        self.tabs.set(texts.MONITOR_TABS[name])
        self._arrange()

    def show_log(self, problem: Message | None = None) -> None:
        """Show the log where a failure is told."""
        from app.monitor.log import LogPage

        self.open_page("log")
        self._make("log")
        page = self.pages["log"]
        if isinstance(page, LogPage) and problem is not None:
            page.show_failure(problem)

    def show_warnings(self) -> None:
        """Show what the log says of warnings."""
        self.open_page("log")
        self._make("log")
        self.pages["log"].only("warning")  # type: ignore[attr-defined]

    # Building

    def _build(self) -> None:
        head = frame(self, look.WINDOW)
        head.pack(fill="x", padx=look.px(24), pady=(look.px(16), look.px(12)))
        text(head, texts.SECTIONS[self.name][0], "title", on=look.WINDOW).pack(side="left")
        self._title = text(head, "", colour=look.MUTED, on=look.WINDOW)
        self._title.pack(side="left", padx=look.px(16), pady=(look.px(6), 0))
        self.warnings = text(head, "", "small", colour=look.WARN, on=look.WINDOW)
        self.warnings.configure(cursor="hand2")
        self.warnings.pack(side="left", pady=(look.px(7), 0))
        self.warnings.bind("<Button-1>", lambda event: self.show_warnings())
        add_hint(self.warnings, self._last_warning)
        names = {words: name for name, words in texts.MONITOR_TABS.items()}
        self.tabs = Segments(head, list(names), lambda words: self.open_page(names[words]))
        self.tabs.set(texts.MONITOR_TABS[self.page])
        self.tabs.pack(side="right")
        self.banner = card(self)
        self.banner.configure(fg_color=look.BAD_SOFT, border_color=look.BAD_SOFT)
        self._banner_buttons = frame(self.banner, look.BAD_SOFT)
        self._banner_buttons.pack(side="right", padx=look.px(12), pady=look.px(8))
        Button(
            self._banner_buttons,
            texts.SHOW_LOG,
            lambda: self.show_log(self._problem),
            on=look.BAD_SOFT,
            icon="terminal",
        ).pack(side="left", padx=look.px(4))
        self._banner_resume = Button(
            self._banner_buttons,
            texts.RESUME,
            lambda: self.state.actions.resume(),
            on=look.BAD_SOFT,
            icon="refresh",
        )
        self._banner_resume.pack(side="left", padx=look.px(4))
        self._banner_words = text(self.banner, "", on=look.BAD_SOFT, wrap=640)
        self._banner_words.pack(side="top", anchor="w", padx=look.px(16), pady=(look.px(10), 0))
        self._banner_advice = text(self.banner, "", "small", colour=look.MUTED, on=look.BAD_SOFT, wrap=640)
        self._banner_advice.pack(side="top", anchor="w", padx=look.px(16), pady=(look.px(2), look.px(10)))
        self._holder = frame(self, look.WINDOW)
        self._holder.pack(fill="both", expand=True, padx=look.px(18), pady=(0, look.px(8)))
        self.waiting = WaitingCard(self, self._holder)
        self._empty = frame(self._holder, look.WINDOW)
        self._empty_words = text(self._empty, "", "large", colour=look.MUTED, on=look.WINDOW)
        self._empty_words.pack()
        self._empty_help = text(self._empty, "", colour=look.FAINT, on=look.WINDOW)
        self._empty_help.pack(pady=look.px(6))

    def _make(self, name: str) -> None:
        """Build a page, here and now."""
        if name not in self.pages:
            module, kind = _PAGES[name]
            self.pages[name] = getattr(importlib.import_module(module), kind)(self._holder, self.state)
            self.pages[name].follow(self.state.run)

    def _arrange(self) -> None:
        """Put the chosen page, or the reason why there is nothing to see, into sight."""
        for name, page in self.pages.items():
            if name != self.page:
                page.pack_forget()
        if self.state.run is None and self.page != "runs":
            self._say(texts.NO_RUN_YET, texts.NO_RUN_YET_HELP)
            return
        if self.page not in self.pages and self.page in {"curves", "runs"} and self.page not in self._importing:
            # matplotlib takes a second: meanwhile the window lives
            self._importing.add(self.page)
            module = _PAGES[self.page][0]
            self._say(texts.PREPARING, "")
            self.state.background.run(lambda: importlib.import_module(module), lambda _: self._arrange_again())
            return
        if self.page not in self.pages and self.page in self._importing and not self._is_imported(self.page):
            return
        self._make(self.page)
        self._empty.place_forget()
        self.pages[self.page].pack(fill="both", expand=True)

    def _arrange_again(self) -> None:
        if self.winfo_exists():
            self._importing.clear()
            self._importing.update(name for name in _PAGES if self._is_imported(name))
            self._arrange()

    @staticmethod
    def _is_imported(name: str) -> bool:
        import sys

        return _PAGES[name][0] in sys.modules

    def _say(self, words: str, help_words: str) -> None:
        for page in self.pages.values():
            page.pack_forget()
        self._empty_words.configure(text=words)
        self._empty_help.configure(text=help_words)
        self._empty.place(relx=0.5, rely=0.42, anchor="center")

    # Showing

    def _followed(self) -> None:
        for page in self.pages.values():
            page.follow(self.state.run)
        if self.shown:
            self._arrange()
            self._show_status()

    def _tick(self) -> None:
        self._job = ""
        if not self.shown:
            return
        began = time.monotonic()
        self._show_status()
        page = self.pages.get(self.page)
        if page is not None and page.winfo_ismapped():
            page.refresh()
        # a slow screen gets as much time for the rest as it needs for the plots
        self._job = self.after(max(REFRESH_MS, round((time.monotonic() - began) * 1000)), self._tick)

    def _show_status(self) -> None:
        run = self.state.run
        status = None if run is None else run.status()
        name = "" if run is None else run.folder.name
        words = texts.SECTIONS[self.name][1] if status is None else f"{name}:  {status.words}"
        if self._title.cget("text") != words:
            self._title.configure(text=words)
        count = 0 if run is None else len(run.view.warnings)
        said = texts.WARNINGS.format(count=count) if count > 1 else texts.WARNING if count else ""
        if self.warnings.cget("text") != said:
            self.warnings.configure(text=said)
        waits = run is not None and status is not None and status.kind == "waiting"
        self.waiting.show(run.invitation if run is not None and waits else None)
        self._show_banner(status)

    def _last_warning(self) -> str:
        run = self.state.run
        return run.view.warnings[-1].text if run is not None and run.view.warnings else ""

    def _show_banner(self, status: Status | None) -> None:
        problem = None if status is None else status.problem
        key = None if problem is None else (problem.text, problem.advice)
        if key == (None if self._problem is None else (self._problem.text, self._problem.advice)):
            return
        self._problem = problem
        if problem is None or status is None:
            self.banner.pack_forget()
            return
        where = "" if problem.rank is None else texts.PROBLEM_WHERE.format(rank=problem.rank, host=problem.host)
        self._banner_words.configure(text=f"{status.words}{where}: {cut(problem.text.strip(), 420)}")
        self._banner_advice.configure(text=cut(problem.advice.strip(), 300))
        if status.can_resume:
            self._banner_resume.pack(side="left", padx=look.px(4))
        else:
            self._banner_resume.pack_forget()
        # a control of customtkinter, which scales by itself
        self.banner.pack(fill="x", padx=24, pady=(0, 10), before=self._holder)
