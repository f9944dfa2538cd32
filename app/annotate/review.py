"""The review: progress, the proposals, and what is done with those that are accepted."""

from __future__ import annotations

import re
import tkinter as tk
from collections.abc import Callable
from typing import Final

from app.annotate.job import AnnotateJob
from app.annotate.review_list import ReviewList
from app.annotate.rows import count
from app.annotate.status import Tone
from app.widgets import theme
from app.widgets.buttons import Button, card, frame, text, wrap_within
from app.widgets.copy_text import CopyText
from app.widgets.progress_bar import ProgressBar

COLOURS: Final[dict[Tone, theme.Colour]] = {
    "muted": theme.MUTED, "good": theme.GOOD, "warn": theme.WARN, "bad": theme.BAD,
}  # fmt: skip
_KEYS: Final = "Arrows move, Enter accepts, Delete rejects, F2 or a double click edits."
_MASK_KEYS: Final = "Arrows move, Enter accepts, Delete rejects. Red is what the mask leaves out."
_EMPTY: Final = (
    "No proposals. Press Settings to choose other images or another model; “Leave” skips images that are done already."
)
_INSTALL: Final = re.compile(r"(?:\S+ -m )?\bpip install [\w.\[\]-]*[\w\]]")


class Review(tk.Frame):
    """`started` is called after this has started a process, `back` to choose other settings."""

    def __init__(
        self, parent: tk.Misc, job: AnnotateJob, started: Callable[[], object], back: Callable[[], object]
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._job, self._started = job, started
        outer = card(self)
        outer.pack(fill="both", expand=True)
        head = frame(outer)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), theme.px(8)))
        self.title = text(head, "", "heading")
        self.title.pack(side="left")
        Button(head, "Settings", back, icon="left", bg=theme.CARD).pack(side="right")
        self.stop_button = Button(head, "Stop", self.stop, icon="stop", bg=theme.CARD)
        self.stop_button.pack(side="right", padx=(0, 8))
        self.failed_button = Button(head, "Show failed", self._filter, bg=theme.CARD)
        self.progress = ProgressBar(outer)
        self.progress.pack(fill="x", padx=theme.px(16))
        self.status = text(outer, "", colour=theme.MUTED)
        wrap_within(self.status, outer)
        self.status.pack(fill="x", padx=theme.px(16), pady=(theme.px(6), theme.px(6)))
        self.install = CopyText(outer, "In a terminal, with the environment of Tandem active")
        self._build_bottom(outer)
        self.list = ReviewList(outer, self.refresh)
        self.list.pack(fill="both", expand=True, padx=theme.px(10))

    def show(self) -> None:
        """Show the proposals of a process that has just been started, or of one that was started before."""
        self.list.show(self._job.rows, self._job.task, self._job.ending)
        self.refresh()
        self.list.canvas.focus_set()

    def stop(self) -> None:
        """End the process; what it has proposed stays."""
        self._job.stop()
        self.refresh()

    def write(self) -> None:
        """Write what is accepted."""
        self.list.close_editor(keep=True)
        self._job.apply()
        self.refresh()
        self._started()

    def undo(self) -> None:
        """Take back what was written."""
        self._job.undo()
        self.refresh()
        self._started()

    def refresh(self) -> None:
        """Show the state of the process and how many proposals are accepted."""
        job = self._job
        accepted = job.accepted
        self.title.configure(text=job.title)
        self.progress.show(job.status.fraction, busy=job.is_running, colour=theme.ACCENT)
        theme.paint(self.status, fg=COLOURS[job.status.tone])
        self.status.configure(text=job.status.text)
        self._show_install(job.status.text if job.status.tone == "bad" else "")
        self.stop_button.configure(state="normal" if job.is_running and not job.is_stopping else "disabled")
        self.list.is_enabled = not job.is_written and (job.work == "propose" or not job.is_running)
        for button in (self.all_button, self.none_button):
            button.configure(state="normal" if self.list.is_enabled and job.rows else "disabled")
        self.write_button.configure(
            text=f"Write {count(accepted, job.task)}" if accepted else "Write",
            state="normal" if accepted and job.can_write else "disabled",
        )
        self.undo_button.configure(state="normal" if job.can_undo else "disabled")
        self._keys.configure(text=_MASK_KEYS if job.task == "mask" else _KEYS)
        self._offer_failed()
        self.list.empty = "" if job.is_running or job.status.tone == "bad" else _EMPTY
        self.list.grow()

    def _filter(self) -> None:
        self.list.filter(not self.list.only_problems)
        self.refresh()

    def _offer_failed(self) -> None:
        """The button that shows only what failed, or all again."""
        failed = sum(bool(row.problem) for row in self._job.rows)
        label = "Show all" if self.list.only_problems else f"Show {failed:,} failed"
        self.failed_button.configure(text=label)
        if not (failed or self.list.only_problems):
            self.failed_button.pack_forget()
        elif not self.failed_button.winfo_manager():
            self.failed_button.pack(side="right", padx=(0, 8))

    def _show_install(self, error: str) -> None:
        found = _INSTALL.search(error)
        if found is None:
            self.install.pack_forget()
        elif not self.install.winfo_manager():
            self.install.show(found.group())
            self.install.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(10)), after=self.status)

    def _build_bottom(self, outer: tk.Misc) -> None:
        row = frame(outer)
        row.pack(side="bottom", fill="x", padx=theme.px(16), pady=(theme.px(4), theme.px(12)))
        self.all_button = Button(row, "Accept all", lambda: self.list.decide_all(True), icon="check", bg=theme.CARD)
        self.all_button.pack(side="left")
        self.none_button = Button(row, "Reject all", lambda: self.list.decide_all(False), icon="close", bg=theme.CARD)
        self.none_button.pack(side="left", padx=(8, 0))
        self.write_button = Button(row, "Write", self.write, icon="save", style="accent", bg=theme.CARD)
        self.write_button.pack(side="right")
        self.undo_button = Button(row, "Undo", self.undo, icon="undo", bg=theme.CARD)
        self.undo_button.pack(side="right", padx=(0, 8))
        self._keys = text(outer, _KEYS, "small", colour=theme.MUTED)
        self._keys.pack(side="bottom", fill="x", padx=theme.px(16), pady=(theme.px(6), 0))
