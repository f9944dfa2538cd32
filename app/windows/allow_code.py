"""Asks whether a Python file that a config names may run, and shows it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from app.widgets import theme
from app.windows.dialog import Dialog
from modules.config import TandemError
from modules.config.trusted_code import describe_code, read_code
from modules.files import printable

_SHOWN_CHARACTERS = 200_000


def ask_for_code(owner: tk.Misc, file: Path, on_allowed: Callable[[bytes], object]) -> Dialog | None:
    """Show the file and ask; `on_allowed` gets the content that was shown. None if the file cannot be read."""
    try:
        code = read_code(file)
    except TandemError:
        return None
    dialog = Dialog(
        owner,
        "May this file run?",
        f"The config names a Python file as its model family: {describe_code(file, code)}. It may do anything that "
        "you can do on this machine, so allow it only if you trust where it comes from. If it changes, "
        "you are asked again.",
    )
    shown = tk.Text(dialog.body, width=90, height=18, wrap="none", borderwidth=0, highlightthickness=0)
    theme.paint(shown, bg=theme.FIELD, fg=theme.TEXT)
    shown.configure(font=theme.tk_font("mono"), padx=theme.px(12), pady=theme.px(10))
    shown.insert("1.0", printable(code.decode("utf-8", "replace"), _SHOWN_CHARACTERS, lines=True, mask=False))
    shown.configure(state="disabled")
    shown.pack(fill="both", expand=True)

    def allow() -> None:
        dialog.close()
        on_allowed(code)

    dialog.button("Do not run it", dialog.close, style="accent")
    dialog.button("Allow this file", allow)
    dialog.show()
    return dialog
