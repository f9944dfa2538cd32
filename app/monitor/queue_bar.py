"""Below the Queue page's table: what can be done with the selected entry, and a message about it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import Protocol

from app.monitor.queue_devices import DevicesField
from app.widgets import theme
from app.widgets.buttons import Button, frame, handler
from app.widgets.message_line import MessageLine
from modules.run.queue.entries import Entry


class EntryActions(Protocol):
    """What the buttons do: the Queue page."""

    def open_run(self) -> None: ...
    def open_settings(self) -> None: ...
    def move(self, by: int) -> None: ...
    def repeat(self) -> None: ...
    def remove(self) -> None: ...
    def undo_remove(self) -> None: ...
    def clear_ended(self) -> None: ...
    def set_devices(self, number: int, devices: list[int] | None) -> None: ...
    def complain(self, reason: str) -> None: ...


class QueueBar(tk.Frame):
    """`show` allows what can be done with an entry."""

    def __init__(self, parent: tk.Misc, actions: EntryActions) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        row = frame(self, theme.WINDOW)
        row.pack(fill="x", pady=(0, theme.px(6)))
        self._build_buttons(row, actions)
        self.devices = DevicesField(row, actions.set_devices, actions.complain)
        self.devices.pack(side="left", padx=(0, theme.px(8)))
        self.clear_button = Button(
            row,
            "Clear ended",
            actions.clear_ended,
            style="quiet",
            tooltip="Forget all entries that have ended; their run folders stay.",
        )
        self.clear_button.pack(side="right")
        self.undo_button = Button(
            row, "Undo", actions.undo_remove, icon="undo", tooltip="Let the one that was removed last wait again."
        )
        self.message = MessageLine(self, lines=2, keeps_height=True)
        self.message.pack(fill="x")

    def show(self, entry: Entry | None, waiting: Sequence[int], *, has_ended: bool, can_undo: bool) -> None:
        """Allow what can be done with the entry; `waiting` are the numbers of those that wait, in their order.

        `has_ended`: there are entries that have ended; `can_undo`: one that had not started was removed.
        """
        place = waiting.index(entry.number) if entry is not None and entry.number in waiting else None
        allowed = {
            self.open_button: entry is not None and entry.started is not None,
            self.settings_button: entry is not None,
            self.up_button: bool(place),
            self.down_button: place is not None and place + 1 < len(waiting),
            self.repeat_button: entry is not None and not entry.is_open,
            self.remove_button: entry is not None,
            self.clear_button: has_ended,
        }
        for button, is_allowed in allowed.items():
            button.configure(state="normal" if is_allowed else "disabled")
        if can_undo and not self.undo_button.winfo_manager():
            self.undo_button.pack(side="right", padx=(8, 0))
        elif not can_undo and self.undo_button.winfo_manager():
            self.undo_button.pack_forget()
        self.devices.show(entry if place is not None else None)

    def _build_buttons(self, row: tk.Frame, actions: EntryActions) -> None:
        self.open_button = Button(
            row, "Open", actions.open_run, icon="monitor", tooltip="Show its run in the monitor and the run bar."
        )
        self.settings_button = Button(
            row,
            "Open settings",
            actions.open_settings,
            icon="presets",
            tooltip="Edit a copy of its settings; what is in the queue stays as it is.",
        )
        self.up_button = Button(row, "", lambda: actions.move(-1), icon="up", tooltip="Earlier  (Alt+Up)")
        self.down_button = Button(row, "", lambda: actions.move(1), icon="down", tooltip="Later  (Alt+Down)")
        self.repeat_button = Button(
            row,
            "Run again",
            actions.repeat,
            icon="refresh",
            tooltip="Wait again; its run continues from its last backup.",
        )
        self.remove_button = Button(
            row,
            "Remove",
            actions.remove,
            icon="trash",
            tooltip="Take it out of the queue; its run folder stays.  (Delete)",
        )
        buttons = (
            self.open_button,
            self.settings_button,
            self.up_button,
            self.down_button,
            self.repeat_button,
            self.remove_button,
        )
        for button in buttons:
            button.pack(side="left", padx=(0, 8))
            # as in the table, which loses the focus to a button that is pressed
            button.bind("<Alt-Up>", handler(lambda: actions.move(-1)), add="+")
            button.bind("<Alt-Down>", handler(lambda: actions.move(1)), add="+")
