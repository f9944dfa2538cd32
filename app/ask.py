"""A question with a few answers, in a window over the one that asks."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from app.controls import Style, add_hint
from app.windows.dialog import Dialog


@dataclass(frozen=True)
class Choice:
    """An answer; the one in the accent style is what Return means. Escape means the empty answer."""

    answer: str
    words: str
    style: Style = "plain"
    help: str = ""


def ask(
    owner: tk.Misc, title: str, question: str, choices: Sequence[Choice], chosen: Callable[[str], object]
) -> tk.Toplevel:
    """Show the question and return at once; `chosen` is called with the answer, the empty one for Escape."""
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
        button = dialog.button(choice.words, partial(answer, choice.answer), choice.style)
        if choice.help:
            add_hint(button, choice.help)
    dialog.on_return(partial(answer, default.answer))
    dialog.window.bind("<Escape>", lambda event: answer(""))
    dialog.window.protocol("WM_DELETE_WINDOW", partial(answer, ""))
    return dialog.show()
