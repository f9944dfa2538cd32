"""The question with which machines to resume a run of several: one of them may be gone for good."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.shell.ask import Choice, ask


def ask_machines(owner: tk.Misc, name: str, machines: int, chosen: Callable[[str], object]) -> None:
    """Ask how to resume the run; `chosen` gets "together", "alone", or an empty answer for neither."""
    others = "the other machine" if machines == 2 else f"the other {machines - 1} machines"
    choices = (
        Choice("", "Cancel", style="quiet"),
        Choice("alone", "On this machine alone"),
        Choice("together", f"With {others}", style="accent"),
    )
    question = (
        f"{name} trained on {machines} machines. With {others} it goes on once all have joined again. On this machine "
        "alone it goes on at once, from the newest backup that is here: with the same result, but slower."
    )
    ask(owner, f"Resume with {others}?", question, choices, chosen)
