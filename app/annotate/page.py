"""The page that captions, tags and masks images: what to make of which images, then the review of what came out."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path
from typing import Final

from app.annotate.earlier import EarlierSet
from app.annotate.job import AnnotateJob, Order
from app.annotate.review import Review
from app.annotate.setup import Setup
from app.state import AppState
from app.widgets import theme
from app.widgets.later import later

POLL_MS: Final = 120


class AnnotatePage(tk.Frame):
    """The process goes on while another page is shown, and is followed again after a change of scale."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        if state.annotate_job is None:
            state.annotate_job = AnnotateJob(state.background)
        self.job = state.annotate_job
        self._poll_job = ""
        self.setup = Setup(self, state, self.start, self.show_review, self.open)
        self.review = Review(self, self.job, self._follow, self.show_setup)
        if self.job.is_running or self.job.rows:
            self.review.show()
            self.show_review()
        else:
            self.show_setup()
        self._follow()

    def shown(self) -> None:
        """Offer the folders that the settings have now."""
        self.setup.offer_folders()

    def offer(self, folder: Path | None) -> None:
        """Choose a folder of images, unless a process is running."""
        if not self.job.is_running:
            self.show_setup()
            if folder is not None:
                self.setup.show_folder(folder)

    def open(self, earlier: EarlierSet) -> None:
        """Show proposals that were made before."""
        self.job.open(earlier)
        self._show_new()

    def start(self, order: Order) -> None:
        """Start the process."""
        self.job.start(order)
        self._show_new()

    def show_setup(self) -> None:
        """Show what to make of which images."""
        self.review.pack_forget()
        self.setup.offer_review(len(self.job.rows), is_running=self.job.is_running)
        self.setup.look_for_earlier()
        self.setup.pack(fill="both", expand=True)

    def hidden(self) -> None:
        """Keep the proposal that is being edited."""
        self.review.list.close_editor(keep=True)

    def show_review(self) -> None:
        """Show the proposals."""
        self.setup.pack_forget()
        self.review.pack(fill="both", expand=True, padx=(8, 20), pady=(0, 16))
        self.review.refresh()

    def _show_new(self) -> None:
        self.show_review()
        self.review.show()
        self._follow()

    def _follow(self) -> None:
        if self.job.is_running and not self._poll_job:
            self._poll_job = later(self, POLL_MS, self._poll)

    def _poll(self) -> None:
        self._poll_job = ""
        if self.job.poll() or not self.job.is_running:
            self.review.refresh()
        if not self.job.is_running:
            self.setup.offer_review(len(self.job.rows), is_running=False)
        self._follow()
