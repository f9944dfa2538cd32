"""The followed run on four pages: curves, processes, samples, log; and the lists of runs and of the queue."""

from __future__ import annotations

import importlib
import sys
import time
import tkinter as tk
from collections.abc import Mapping
from typing import Final

from app.form.setting_text import with_titles
from app.monitor.page import Page
from app.monitor.recent_runs import RecentRuns
from app.multi_gpu.commands import without_questions
from app.open_path import show_folder
from app.runs.join_prompt import JoinPrompt
from app.runs.status import Status
from app.sections import SECTIONS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Segments, add_tooltip, card, frame, text, wrap_within
from app.widgets.copy_text import CopyText
from app.widgets.ellipsis import truncate
from app.widgets.message_line import MessageLine
from app.widgets.section_head import SectionHead
from app.windows.result import can_generate
from modules.config import load_config
from modules.run import RunFolder
from modules.run.join.allowed_paths import asked_about
from modules.run.view.event_records import Message, SampleFile

REFRESH_MS: Final = 125
DRAWING_MS: Final = 25  # while a page draws one of its plots after the other
IDLE_MS: Final = 400  # while the run is over: a run that is resumed elsewhere, another list of runs

# Module and class of each page, imported when first shown.
_PAGES: Final[Mapping[str, tuple[str, str]]] = {
    "curves": ("app.monitor.curves", "CurvesPage"),
    "ranks": ("app.monitor.ranks", "RanksPage"),
    "samples": ("app.monitor.samples", "SamplesPage"),
    "log": ("app.monitor.log", "LogPage"),
    "runs": ("app.monitor.runs", "RunsPage"),
    "queue": ("app.monitor.run_queue", "QueuePage"),
}

TABS: Final = {
    "curves": "Curves",
    "ranks": "Processes",
    "samples": "Samples",
    "log": "Log",
    "runs": "Runs",
    "queue": "Queue",
}
_WITHOUT_RUN: Final = ("runs", "queue")
_PLOTTING: Final = ("curves", "runs")  # which need matplotlib
_BESIDE_BANNER: Final = 270  # what its texts leave to its buttons, in unscaled pixels


class Section(tk.Frame):
    """Only the visible page is refreshed."""

    name = "monitor"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self.state = state
        self.shown = False
        self.pages: dict[str, Page] = {}
        saved = state.pages.get(self.name, "")
        self.page = saved if saved in TABS else "curves"
        self._importing: set[str] = set()
        self._problem: Message | None = None
        self._shown_problem: tuple[str, str, str] | None = None  # what the banner says of it
        self._job = ""
        self._build()
        state.subscribe("run", self._followed, self)

    def show(self) -> None:
        """Show the section."""
        self.shown = True
        self._followed()
        if not self._job:
            self._tick()

    def hide(self) -> None:
        """Hide the section."""
        self.shown = False

    def jump_to(self, path: str) -> None:
        """Do nothing: there are no settings here."""

    def destroy(self) -> None:
        """Close all pages."""
        if self._job:
            self.after_cancel(self._job)
        for page in self.pages.values():
            page.close()
        super().destroy()

    def open_page(self, name: str) -> None:
        """Show a page; slow modules are imported in a thread."""
        self.page = name
        self.state.set_page(self.name, name)
        self.tabs.set(TABS[name])
        self._arrange()
        self._show_status()

    def show_run(self) -> None:
        """Show a page of the followed run."""
        self.open_page("curves" if self.page in _WITHOUT_RUN else self.page)

    def show_log(self, problem: Message | None = None) -> None:
        """Show the log, at the failure if one is given."""
        from app.monitor.log import LogPage

        self.open_page("log")
        self._make("log")
        page = self.pages["log"]
        if isinstance(page, LogPage) and problem is not None:
            page.show_failure(problem)

    def show_sample(self, sample: SampleFile) -> None:
        """Show a sample of the followed run among those of its step."""
        self.open_page("samples")
        self._make("samples")
        self.pages["samples"].show_sample(sample)  # type: ignore[attr-defined]

    def show_warnings(self) -> None:
        """Show the warnings in the log."""
        self.open_page("log")
        self._make("log")
        self.pages["log"].show_level("warning")  # type: ignore[attr-defined]

    def _build(self) -> None:
        self._head = head = SectionHead(self, SECTIONS[self.name][0])
        names = {title: name for name, title in TABS.items()}
        self.tabs = Segments(head.frame, list(names), lambda title: self.open_page(names[title]))
        self.tabs.set(TABS[self.page])
        self.tabs.pack(side="right")
        self.warnings = head.add_label("small", theme.WARN)
        self.warnings.configure(cursor="hand2")
        self.warnings.bind("<Button-1>", lambda event: self.show_warnings())
        add_tooltip(self.warnings, self._last_warning)
        self.banner = card(self)
        self.banner.configure(fg_color=theme.BAD_SOFT, border_color=theme.BAD_SOFT)
        self._banner_buttons = frame(self.banner, theme.BAD_SOFT)
        self._banner_buttons.pack(side="right", padx=theme.px(12), pady=theme.px(8))
        Button(
            self._banner_buttons,
            "Show log",
            lambda: self.show_log(self._problem),
            bg=theme.BAD_SOFT,
            icon="terminal",
        ).pack(side="left", padx=4)
        self._banner_resume = Button(
            self._banner_buttons,
            "Resume",
            lambda: self.state.actions.resume(),
            bg=theme.BAD_SOFT,
            icon="refresh",
        )
        self._banner_resume.pack(side="left", padx=4)
        self._banner_title = text(self.banner, "", bg=theme.BAD_SOFT)
        self._banner_title.pack(side="top", anchor="w", padx=theme.px(16), pady=(theme.px(10), 0))
        self._banner_advice = text(self.banner, "", "small", colour=theme.MUTED, bg=theme.BAD_SOFT)
        for label in (self._banner_title, self._banner_advice):
            label.configure(cursor="hand2")
            label.bind("<Button-1>", lambda event: self.state.views.error())
            wrap_within(label, self.banner, margin=_BESIDE_BANNER)
        self._holder = frame(self, theme.WINDOW)
        self._holder.pack(fill="both", expand=True, padx=theme.px(18), pady=(0, theme.px(8)))
        self.waiting = WaitingCard(self, self._holder)
        self.result = ResultCard(self, self.state, self._holder)
        self._empty = frame(self._holder, theme.WINDOW)
        self._empty_title = text(self._empty, "", "large", colour=theme.MUTED, bg=theme.WINDOW)
        self._empty_title.pack()
        self._empty_help = text(self._empty, "", colour=theme.FAINT, bg=theme.WINDOW)
        self._empty_help.configure(justify="center")
        wrap_within(self._empty_help, self._holder)
        self._empty_help.pack(pady=theme.px(6))
        self.recent = RecentRuns(self._empty, self.state)

    def _make(self, name: str) -> None:
        """Build a page if it does not exist."""
        if name not in self.pages:
            module, kind = _PAGES[name]
            self.pages[name] = getattr(importlib.import_module(module), kind)(self._holder, self.state)
            self.pages[name].open_page = self.open_page
            self.pages[name].follow(self.state.run)

    def _arrange(self) -> None:
        """Show the chosen page, or why there is nothing to show."""
        for name, page in self.pages.items():
            if name != self.page:
                page.pack_forget()
        if self.state.run is None and self.page not in _WITHOUT_RUN:
            self._show_message(
                "Press Train to start a run",
                ("The curves, processes, samples and log of a run appear here. Earlier runs are listed under Runs."),
            )
            self.recent.pack(fill="x", pady=(theme.px(10), 0))
            self.recent.refresh()
            return
        if self.page not in self.pages and not self._is_imported(self.page):
            self._show_message("Preparing the plots…", "")
            return
        self._make(self.page)
        self._empty.place_forget()
        self.pages[self.page].pack(fill="both", expand=True)

    def _is_imported(self, name: str) -> bool:
        """Whether a page can be built at once; else its module is imported in the background, which shows it then.

        matplotlib takes a second or two, and what is imported in the meantime may wait for a lock of that import.
        """
        module = _PAGES[name][0]
        if name in self._importing:
            return False
        if module in sys.modules or not (name in _PLOTTING or self._importing):
            return True
        self._importing.add(name)
        self.state.background.run(lambda: importlib.import_module(module), lambda _: self._has_imported(name))
        return False

    def _has_imported(self, name: str) -> None:
        self._importing.discard(name)
        if self.winfo_exists() and self.page == name:
            self._arrange()

    def _show_message(self, title: str, detail: str) -> None:
        for page in self.pages.values():
            page.pack_forget()
        self.recent.pack_forget()
        self._empty_title.configure(text=title)
        self._empty_help.configure(text=detail)
        self._empty.place(relx=0.5, rely=0.42, anchor="center")

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
        started = time.monotonic()
        self._show_status()
        page = self.pages.get(self.page)
        if page is not None and page.winfo_ismapped():
            page.refresh()
        run = self.state.run
        pause = REFRESH_MS if run is not None and (run.is_alive or not run.is_caught_up) else IDLE_MS
        if page is not None and page.is_unfinished:
            pause = DRAWING_MS
        # on a slow screen, spend at most half the time on plots
        self._job = self.after(max(pause, round((time.monotonic() - started) * 1000)), self._tick)

    def _show_status(self) -> None:
        run = self.state.run
        status = None if run is None else run.status()
        name = "" if run is None else run.folder.name
        count = 0 if run is None else len(run.view.warnings)
        said = f"{count} warnings" if count > 1 else "1 warning" if count else ""
        if self.warnings.cget("text") != said:
            self.warnings.configure(text=said)
        if status is None:
            self._head.say(SECTIONS[self.name][1], cut="end")
        else:
            self._head.say(name, f": {status.title}", cut="middle")
        waits = run is not None and status is not None and status.kind == "waiting"
        self.waiting.show(run.join_prompt if run is not None and waits else None, None if run is None else run.folder)
        self._show_banner(None if self.page in _WITHOUT_RUN else status)
        self.result.show(None if self.page in _WITHOUT_RUN else status)

    def _last_warning(self) -> str:
        run = self.state.run
        return with_titles(run.view.warnings[-1].text) if run is not None and run.view.warnings else ""

    def _show_banner(self, status: Status | None) -> None:
        problem = None if status is None else status.problem
        key = None if problem is None or status is None else (problem.text, problem.advice, status.detail)
        if key == self._shown_problem:
            return
        self._problem, self._shown_problem = problem, key
        if problem is None or status is None:
            self.banner.pack_forget()
            return
        origin = f" ({problem.origin})" if problem.origin else ""
        self._banner_title.configure(text=f"{status.title}{origin}: {truncate(with_titles(problem.text.strip()), 420)}")
        advice = truncate(with_titles(status.advice), 300)
        self._show_advice(" ".join(filter(None, (advice, status.detail))))
        if status.can_resume:
            self._banner_resume.pack(side="left", padx=4)
        else:
            self._banner_resume.pack_forget()
        # customtkinter scales its own widgets
        self.banner.pack(fill="x", padx=24, pady=(0, 10), before=self._holder)

    def _show_advice(self, advice: str) -> None:
        """Without advice, the title stands in the middle of the banner."""
        self._banner_advice.configure(text=advice)
        margin = theme.px(10)
        self._banner_title.pack_configure(expand=not advice, pady=(margin, 0 if advice else margin))
        if advice:
            self._banner_advice.pack(side="top", anchor="w", padx=theme.px(16), pady=(theme.px(2), margin))
        else:
            self._banner_advice.pack_forget()


class WaitingCard:
    """A card of the monitor; `show` may be called repeatedly and redraws only changes."""

    def __init__(self, parent: Section, before: tk.Misc) -> None:
        self.frame = card(parent)
        self._before, self._state = before, parent.state
        self._offered_for = ""  # the join line
        self.allowing: CopyText | None = None
        self._shown: JoinPrompt | None = None
        self.line = CopyText(self.frame, "Run this on each of the other machines, in Tandem's folder:")
        self.messages = text(self.frame, "", colour=theme.MUTED)
        wrap_within(self.messages, self.frame)
        self.messages.pack(fill="x", padx=theme.px(16), pady=(theme.px(8), theme.px(12)))

    def show(self, join_prompt: JoinPrompt | None, folder: RunFolder | None) -> None:
        """Show the join prompt of the run in this folder; None hides the card."""
        if join_prompt == self._shown:
            return
        previous, self._shown = self._shown, join_prompt
        if join_prompt is None:
            self.frame.pack_forget()
            return
        if previous is None:
            # a customtkinter widget, which scales itself
            self.frame.pack(fill="x", padx=24, pady=(0, 10), before=self._before)
        self.line.show(join_prompt.line)
        if join_prompt.by_hand:
            self.line.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), 0), before=self.messages)
            self._offer(join_prompt.line, folder)
        else:
            self.line.pack_forget()
            self._take_offer_away()
        self.messages.configure(text="\n".join(join_prompt.messages))

    def _offer(self, line: str, folder: RunFolder | None) -> None:
        """Below the line, what the other machine will ask about, and the line that answers it."""
        if line == self._offered_for or folder is None:
            return
        self._take_offer_away()
        self._offered_for = line

        def read(asked: dict[str, str]) -> None:
            for command in without_questions(line, asked) if line == self._offered_for else ():
                self.allowing = CopyText(self.frame, command.title, command.text, command.help, command.options)
                self.allowing.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), 0), before=self.messages)

        self._state.background.run(lambda: asked_about(load_config(folder.config_file)), read)

    def _take_offer_away(self) -> None:
        self._offered_for = ""
        if self.allowing is not None:
            self.allowing.destroy()
            self.allowing = None


class ResultCard:
    """Shown above `below` while the followed run is complete."""

    def __init__(self, parent: tk.Misc, state: AppState, below: tk.Misc) -> None:
        self._state, self._below = state, below
        self.card = card(parent)
        self._folder: RunFolder | None = None
        buttons = frame(self.card)
        buttons.pack(side="right", padx=theme.px(12), pady=theme.px(8))
        self.result = Button(buttons, "Show result", lambda: state.views.result(), icon="file", bg=theme.CARD)
        self.opened = Button(buttons, "Open folder", self._open, icon="folder", bg=theme.CARD)
        self.generate = Button(
            buttons, "Generate with it", lambda: state.views.generate(), icon="generate", bg=theme.CARD
        )
        for button in (self.result, self.opened):
            button.pack(side="left", padx=4)
        self._title = text(self.card, "", "strong", colour=theme.GOOD)
        self._title.pack(side="left", padx=(theme.px(16), theme.px(12)), pady=theme.px(14))
        self._detail = MessageLine(self.card, bg=theme.CARD)
        self._detail.pack(side="left", fill="x", expand=True)

    def show(self, status: Status | None) -> None:
        """Show or hide it, as the run's status asks for."""
        run = self._state.run
        folder = run.folder if run is not None and status is not None and status.has_result else None
        if folder == self._folder:
            return
        self._folder = folder
        if folder is None or status is None:
            self.card.pack_forget()
            return
        self._title.configure(text=status.title)
        self._detail.say(status.detail)
        if can_generate(folder):
            self.generate.pack(side="left", padx=4)
        else:
            self.generate.pack_forget()
        self.card.pack(fill="x", padx=24, pady=(0, 10), before=self._below)

    def _open(self) -> None:
        if self._folder is not None:
            show_folder(self._state, self._folder.path, self._detail.say)
