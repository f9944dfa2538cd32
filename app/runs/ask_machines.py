"""The question with which machines to resume a run of several: one of them may be gone for good."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence

from app.shell.ask import Choice, ask


def ask_machines(
    owner: tk.Misc, name: str, machines: int, started_here: Sequence[str], chosen: Callable[[str], object]
) -> None:
    """Ask how to resume the run; `chosen` gets "together", "alone", or an empty answer for neither.

    `started_here`: those of the other machines that Train starts over ssh.
    """
    others = "the other machine" if machines == 2 else f"the other {machines - 1} machines"
    how = f" ({', '.join(started_here)} started over ssh by this window)" if started_here else ""
    choices = (
        Choice("", "Cancel", style="quiet"),
        Choice("alone", "On this machine alone"),
        Choice("together", f"With {others}", style="accent"),
    )
    question = (
        f"{name} trained on {machines} machines. With {others} it goes on once all have joined again{how}. On this "
        "machine alone it goes on at once, from the newest backup that is here: with the same result, but slower."
    )
    ask(owner, f"Resume with {others}?", question, choices, chosen)
