"""The checks between a press of Train or Queue and the start: first those of the window that are still under way."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Final

from app.runs.checks import Missing, missing_for_training
from app.state import AppState
from app.widgets.later import later
from app.windows.dialog import Dialog
from app.windows.faults import show_faults
from modules.config import TrainConfig

_POLL_MS: Final = 50
_DIALOG_SHOWN_MS: Final = 300


class StartCheck:
    """Calls `ended` when a check is over or was cancelled, before what is missing is listed or the start goes on."""

    def __init__(self, owner: tk.Misc, state: AppState, ended: Callable[[], object]) -> None:
        self._owner, self._state, self._ended = owner, state, ended
        self._anyway = ""

    def run(self, go_on: Callable[[TrainConfig], object], anyway: str = "Start all the same") -> None:
        """Check the present settings; if nothing is missing, or the user wants it `anyway`, `go_on` gets them."""
        self._anyway = anyway
        self._wait_for_family(self._make_dialog(), go_on)

    def _make_dialog(self) -> Dialog:
        """With which to give up; it shows itself after a moment."""
        dialog = Dialog(self._owner, "Checking the settings…", "The model family and the base model are being read.")

        def cancel() -> None:
            dialog.close()
            self._ended()

        dialog.on_cancel = cancel
        dialog.button("Cancel", cancel)
        later(dialog.window, _DIALOG_SHOWN_MS, dialog.show)
        return dialog

    def _wait_for_family(self, dialog: Dialog, go_on: Callable[[TrainConfig], object]) -> None:
        family, config = self._state.family, self._state.draft.config
        if not dialog.window.winfo_exists():
            return  # cancelled
        if config is not None and family.declaration is None and not family.error:
            later(dialog.window, _POLL_MS, lambda: self._wait_for_family(dialog, go_on))
            return

        def checked(missing: Missing) -> None:
            if dialog.window.winfo_exists():
                self._end(dialog)
                self._decide(config, missing, go_on)

        if config is None:  # the family's declaration has shown an error
            self._end(dialog)
            self._state.notify("invalid")
        else:
            declaration, error = family.declaration, family.error
            self._state.background.run(lambda: missing_for_training(config, declaration, error), checked)

    def _end(self, dialog: Dialog) -> None:
        if dialog.window.winfo_viewable():
            dialog.close()
        else:
            dialog.window.destroy()
        self._ended()

    def _decide(self, config: TrainConfig | None, missing: Missing, go_on: Callable[[TrainConfig], object]) -> None:
        """Go on, or list what is missing."""
        if config is None:
            return
        if missing.faults:
            anyway = None if missing.certain else partial(go_on, config)
            why = "Training cannot start yet." if missing.certain else "Training would probably fail."
            show_faults(self._owner, self._state, why, missing.faults, anyway, self._anyway)
        else:
            go_on(config)
