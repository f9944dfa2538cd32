"""An error whole, with its advice, to copy; leads to the setting that it names and to the log."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Final

from app.form.setting_text import setting_named
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import frame
from app.widgets.scrollbar import Scrollbar
from app.windows.dialog import Dialog
from modules.files import visible

_WIDTH: Final = 78  # characters
_MAX_LINES: Final = 16


class ErrorDetails:
    """The dialog with `message`; `names` has the settings of it by their names in files, to show the first.

    `open_log` is what "Show log" does, if there is a log.
    """

    def __init__(
        self,
        owner: tk.Misc,
        state: AppState,
        title: str,
        message: str,
        names: str,
        open_log: Callable[[], object] | None,
    ) -> None:
        self._owner, self._state = owner, state
        self.dialog = Dialog(owner, title)
        self._message = message.strip()
        holder = frame(self.dialog.body)
        holder.pack(fill="both", expand=True)
        self.text = tk.Text(
            holder, width=_WIDTH, height=1, wrap="word", font=theme.tk_font("body"),
            relief="flat", borderwidth=0, highlightthickness=0, padx=theme.px(2),
        )  # fmt: skip
        theme.paint(self.text, bg=theme.CARD, fg=theme.TEXT)
        self.text.insert("1.0", visible(self._message))
        self.text.configure(state="disabled")
        self._bar = Scrollbar(holder, self.text.yview)
        self.text.configure(yscrollcommand=self._bar.set)
        self.text.pack(side="left", fill="both", expand=True)
        self.copy = self.dialog.button("Copy", self._copy)
        if open_log is not None:
            self.show_log = self.dialog.button("Show log", lambda: self._leave(open_log))
        if path := setting_named(names.strip()):
            self.show_setting = self.dialog.button("Show setting", lambda: self._leave(lambda: state.jump_to(path)))
        self.debug_package = self.dialog.button("Debug package…", lambda: self._leave(self._make_package))
        self.dialog.button("Close", self.dialog.close, "accent")
        self.dialog.on_return(self.dialog.close)

    def show(self) -> tk.Toplevel:
        """Open the dialog, as high as its text needs."""
        window = self.dialog.show()
        window.update_idletasks()  # only now the text has its width, and with that its lines
        counted = self.text.count("1.0", "end", "displaylines")
        lines = counted[0] if isinstance(counted, tuple) else int(counted or 1)
        self.text.configure(height=min(lines, _MAX_LINES))
        if lines > _MAX_LINES:
            self._bar.pack(side="right", fill="y", before=self.text)
        self.dialog.place()
        return window

    def _copy(self) -> None:
        self.dialog.window.clipboard_clear()
        self.dialog.window.clipboard_append(self._message)
        self.copy.configure(text="Copied")

    def _make_package(self) -> None:
        from app.windows.debug_package import DebugPackageWindow  # its imports would delay the first paint

        run = self._state.run
        DebugPackageWindow(self._owner, self._state, None if run is None else run.folder, self._message).show()

    def _leave(self, action: Callable[[], object]) -> None:
        self.dialog.close()
        action()
