"""What happens when a run ends: on the desktop, and by a command or webhook of the user's own."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Entry, Switch, frame, text
from app.windows.dialog import Dialog
from modules.config import ConfigError
from modules.run.notification import RunEnd, check_target, keep_target, kept_target, notify

_ABOUT: Final = "When a run ends or fails, also one of the queue or of a terminal, and with this window closed:"
_HELP: Final = (
    "A command finds the run in TANDEM_TEXT, TANDEM_STATE, TANDEM_RUN, TANDEM_STEP and TANDEM_ERROR. A URL gets the "
    "same as JSON (ntfy, Slack, Discord). Kept in a file that only you can read; no config can set it."
)
_WIDTH: Final = 520  # unscaled pixels


class NotificationsWindow:
    """Saved by its button; Test sends what is in the field."""

    def __init__(self, owner: tk.Misc, state: AppState) -> None:
        self._state = state
        self.dialog = Dialog(owner, "Notifications")
        body = self.dialog.body
        first = frame(body)
        first.pack(fill="x", pady=(0, theme.px(16)))
        text(first, "On the desktop, when the followed run ends while this window is in the background").pack(
            side="left"
        )
        self.desktop = Switch(first, self._set_desktop)
        self.desktop.show(state.preferences.notifies)
        self.desktop.pack(side="right", padx=(theme.px(16), 0))
        text(body, _ABOUT, wrap=_WIDTH).pack(anchor="w", pady=(0, theme.px(6)))
        self.target = Entry(body, width=_WIDTH, placeholder="a command, or https://…")
        self.target.pack(fill="x")
        text(body, _HELP, "small", colour=theme.MUTED, wrap=_WIDTH).pack(anchor="w", pady=(theme.px(6), 0))
        self.said = text(body, "", "small", wrap=_WIDTH)
        self.said.pack(anchor="w", pady=(theme.px(6), 0))
        try:
            self.target.show(kept_target())
        except ConfigError as error:
            self._say(str(error), theme.BAD)
        self.dialog.button("Test", self._test)
        self.dialog.button("Cancel", self.dialog.close)
        self.dialog.button("Save", self._save, "accent")
        self.dialog.on_return(self._save)

    def show(self) -> tk.Toplevel:
        """Open the dialog."""
        window = self.dialog.show()
        self.target.focus_set()
        return window

    def _set_desktop(self, is_on: bool) -> None:
        self._state.preferences.notifies = is_on
        self._state.preferences.save()

    def _save(self) -> None:
        try:
            keep_target(self.target.get().strip())
        except ConfigError as error:
            self._say(str(error), theme.BAD)
        else:
            self.dialog.close()

    def _test(self) -> None:
        target = self.target.get().strip()
        try:
            check_target(target)
        except ConfigError as error:
            self._say(str(error), theme.BAD)
            return
        end = RunEnd("finished", "test", 1000)
        self._say("Sending…" if target else "There is nothing to send to.", theme.MUTED)
        if target:
            self._state.background.run(lambda: notify(target, end), self._tested)

    def _tested(self, reason: str) -> None:
        self._say(f"Not sent: {reason}." if reason else "Sent.", theme.BAD if reason else theme.GOOD)

    def _say(self, sentence: str, colour: theme.Colour) -> None:
        if self.said.winfo_exists():
            self.said.configure(text=sentence)
            theme.paint(self.said, fg=colour)
