"""Asks whether a Python file that a config names may run, and shows it with the files that it imports."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence

from app.widgets import theme
from app.windows.dialog import Dialog
from modules.config.imported_code import CodeFile
from modules.config.trusted_code import describe_code
from modules.files import printable

_SHOWN_CHARACTERS = 200_000


def ask_for_code(
    owner: tk.Misc, what: str, files: Sequence[CodeFile], on_allowed: Callable[[Sequence[CodeFile]], object]
) -> Dialog:
    """Show the files that are `what` of a config, and ask; `on_allowed` gets what was shown."""
    others = len(files) - 1
    imports = f", which imports {others} other file{'s' * (others > 1)}" * (others > 0)
    they, come, these = ("It", "it comes", "this file") if len(files) == 1 else ("They", "they come", "these files")
    dialog = Dialog(
        owner,
        "May this code run?" if imports else "May this file run?",
        f"The config names a Python file as its {what}{imports}. {they} may do anything that you can do on this "
        f"machine, so allow {these} only if you trust where {come} from. If anything changes, you are asked again.",
    )
    shown = tk.Text(dialog.body, width=90, height=18, wrap="none", borderwidth=0, highlightthickness=0)
    theme.paint(shown, bg=theme.FIELD, fg=theme.TEXT)
    shown.configure(font=theme.tk_font("mono"), padx=theme.px(12), pady=theme.px(10))
    shown.insert("1.0", f"{describe_code(files)}\n\n")
    for each in files:
        shown.insert("end", _contents(each, _SHOWN_CHARACTERS // len(files)))
    shown.configure(state="disabled")
    shown.pack(fill="both", expand=True)

    def allow() -> None:
        dialog.close()
        on_allowed(files)

    dialog.button("Do not run it", dialog.close, style="accent")
    dialog.button(f"Allow {these}", allow)
    dialog.show()
    return dialog


def _contents(file: CodeFile, limit: int) -> str:
    text = file.content.decode("utf-8", "replace") if file.is_source else "(compiled or packed)"
    return f"--- {printable(file.path, mask=False)}\n{printable(text, limit, lines=True, mask=False)}\n\n"
