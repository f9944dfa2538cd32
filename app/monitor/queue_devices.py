"""The field for the GPUs of the entry that is selected on the Queue page."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets import theme
from app.widgets.buttons import Entry, add_tooltip, handler, text
from modules.config import ConfigError
from modules.run.queue import entries

_ANY = "any"
_HELP = (
    "The GPUs that the selected entry waits for, such as 0,1; empty for any: it gets as many as its settings ask for "
    "once they are free. Entries with different GPUs run at the same time."
)


class DevicesField(tk.Frame):
    """`chosen` gets an entry's number and other GPUs (None: any), `refused` why what was typed cannot be."""

    def __init__(
        self,
        parent: tk.Misc,
        chosen: Callable[[int, list[int] | None], object],
        refused: Callable[[str], object],
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._chosen, self._refused = chosen, refused
        self._entry: entries.Entry | None = None
        text(self, "GPUs", "small", colour=theme.MUTED, bg=theme.WINDOW).pack(side="left", padx=(0, theme.px(6)))
        self.control = Entry(self, lambda typed: None, left=self.take, bg=theme.WINDOW, width=84, placeholder=_ANY)
        self.control.pack(side="left")
        for key in ("<Return>", "<KP_Enter>"):
            self.control.line.bind(key, handler(self.take))
        self.control.enable(False)
        add_tooltip(self, _HELP)
        add_tooltip(self.control, _HELP)

    def show(self, entry: entries.Entry | None) -> None:
        """Show those of an entry that waits, unless it shows them already, or what has been typed for them."""
        before, self._entry = self._entry, entry
        if before is None or entry is None or (before.number, before.devices) != (entry.number, entry.devices):
            self.control.mark(False)
            self.control.show("" if entry is None or entry.devices is None else ", ".join(map(str, entry.devices)))
        self.control.enable(entry is not None)

    def refuse(self) -> None:
        """Mark what has been typed: the queue has not taken it."""
        self.control.mark(True)

    def take(self) -> None:
        """Choose what has been typed."""
        entry, typed = self._entry, self.control.get().strip()
        if entry is None:
            return
        try:
            devices = entries.parse_devices(typed or _ANY, "GPUs")
        except ConfigError as error:
            self.control.mark(True)
            self._refused(str(error))
            return
        self.control.mark(False)
        if devices != entry.devices:
            self._chosen(entry.number, devices)
