"""The question with which machines to resume a run of several: one of them may be gone for good."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence

from app.shell.ask import Choice, ask


def ask_machines(
    owner: tk.Misc,
    name: str,
    machines: int,
    started_here: Sequence[str],
    chosen: Callable[[str], object],
    *,
    has_backup: bool = True,
) -> None:
    """Ask how to resume the run; `chosen` gets "together", "alone", or an empty answer for neither.

    `started_here`: those of the other machines that Train starts over ssh. `has_backup`: there is one on this machine.
    """
    others = "the other machine" if machines == 2 else f"the other {machines - 1} machines"
    choices = (
        Choice("", "Cancel", style="quiet"),
        Choice("alone", "On this machine alone"),
        Choice("together", f"With {others}", style="accent"),
    )
    trained = f"{name} trained on {machines} machines."
    ask(owner, f"Resume with {others}?", f"{trained} {effects(others, started_here, has_backup)}", choices, chosen)


def effects(others: str, started_here: Sequence[str], has_backup: bool) -> str:
    """What either choice does."""
    how = f" ({', '.join(started_here)} started over ssh by this window)" if started_here else ""
    begin = "goes on at once, from the newest backup that is here" if has_backup else "starts at the first step"
    return (
        f"With {others} it goes on once all have joined again{how}. On this machine alone it {begin}: with the same "
        "result, but slower."
    )
