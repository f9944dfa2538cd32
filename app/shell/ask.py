"""Modal questions: a choice of answers, or a name."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from app.widgets import theme
from app.widgets.buttons import Entry, Style, add_tooltip, text
from app.windows.dialog import Dialog


@dataclass(frozen=True)
class Choice:
    """One answer; Return picks the one in accent style, Escape gives the empty answer."""

    answer: str
    label: str
    style: Style = "plain"
    help: str = ""


def ask(
    owner: tk.Misc,
    title: str,
    question: str,
    choices: Sequence[Choice],
    chosen: Callable[[str], object],
    *,
    is_over: Callable[[], bool] | None = None,
) -> tk.Toplevel:
    """Show the question and return at once; `chosen` is called with the answer, which is empty for Escape.

    Once `is_over`, the question answers itself as Escape does: what it was about has ended.
    """
    dialog = Dialog(owner, title, question)
    is_answered = False

    def answer(value: str) -> None:
        nonlocal is_answered
        if not is_answered:
            is_answered = True
            dialog.close()
            chosen(value)

    default = next((choice for choice in choices if choice.style == "accent"), choices[0])
    for choice in choices:
        button = dialog.button(choice.label, partial(answer, choice.answer), choice.style)
        if choice.help:
            add_tooltip(button, choice.help)
    dialog.on_return(partial(answer, default.answer))
    dialog.on_cancel = partial(answer, "")
    window = dialog.show()
    if is_over is not None:
        dialog.cancel_when(is_over)
    return window


def ask_name(
    owner: tk.Misc, question: str, name: str, accept: Callable[[str], str], label: str = "Save"
) -> tk.Toplevel:
    """Ask for a name until `accept` returns no error message."""
    dialog = Dialog(owner, question)
    entry = Entry(dialog.body, bg=theme.CARD, width=320)
    entry.show(name)
    entry.pack(anchor="w")
    error_label = text(dialog.body, "", "small", colour=theme.BAD, wrap=320)
    error_label.pack(anchor="w", pady=(theme.px(4), 0))

    def submit() -> None:
        error = accept(entry.get())
        error_label.configure(text=error)
        if not error:
            dialog.close()

    dialog.on_return(submit)
    dialog.button("Cancel", dialog.close)
    dialog.button(label, submit, "accent")
    window = dialog.show()
    entry.focus_set()
    entry.select_range(0, "end")
    return window
