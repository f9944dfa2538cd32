"""Above the monitor's pages, once a run is complete: what to do with its result."""

from __future__ import annotations

import tkinter as tk

from app.open_path import show_folder
from app.runs.status import Status
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, card, frame, text
from app.widgets.message_line import MessageLine
from app.windows.result import can_generate
from modules.run import RunFolder


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
