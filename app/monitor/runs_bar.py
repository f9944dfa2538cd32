"""Below the Runs page's table: what can be done with the selected runs, and a message about them."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Protocol

from app.monitor.run_list import RunSummary
from app.widgets import theme
from app.widgets.buttons import Button, add_tooltip, frame
from app.widgets.message_line import MessageLine


class RunsActions(Protocol):
    """What the buttons do: the Runs page."""

    def follow_selected(self) -> None: ...
    def resume_selected(self) -> None: ...
    def open_settings(self) -> None: ...
    def show_backups(self) -> None: ...
    def show_report(self) -> None: ...
    def show_menu(self) -> None: ...
    def undo_delete(self) -> None: ...


class RunsBar(tk.Frame):
    """`show` allows what can be done with the selected runs, `offer_undo` shows a button that takes back a deletion."""

    def __init__(self, parent: tk.Misc, actions: RunsActions) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
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
        can_resume = only is not None and only.status.can_resume and not self._complete
        self.resume.configure(state="normal" if can_resume else "disabled")
        self.more.configure(state="normal" if selected else "disabled")

    def _help_of_resume(self) -> str:
        if self._complete:
            return (
                f"{self._complete} is complete. To train it further, open its settings, raise its epochs or maximum "
                f"steps, set the run name to {self._complete}, and press Train."
            )
        return "Continue from the newest backup, with the run's own settings."

    def offer_undo(self, offered: bool) -> None:
        """Show the button that takes back what was deleted, or hide it."""
        if offered and not self.undo.winfo_manager():
            self.undo.pack(side="right")
        elif not offered and self.undo.winfo_manager():
            self.undo.pack_forget()

    def _build_buttons(self, row: tk.Frame, actions: RunsActions) -> None:
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
