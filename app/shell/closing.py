"""Closing the window during a run: leave the run running, or stop it after a backup."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.shell.ask import Choice, ask
from app.state import AppState


def confirm_close(owner: tk.Misc, state: AppState, close: Callable[[], object]) -> None:
    """Call `close`; if a run is active, ask first whether to stop it, leave it running or cancel."""
    run = state.run
    if run is None or not run.is_alive:
        close()
        return
    with run.view.lock:
        step = run.view.step
    place = "its start" if step is None else f"step {step.step:,}"
    choices = (
        Choice("", "Cancel", style="quiet"),
        Choice("stop", "Stop after a backup", help="The run stops after the current step."),
        Choice("leave", "Leave it running", style="accent", help="The window reconnects to it when you open it again."),
    )

    def chosen(answer: str) -> None:
        if answer == "stop" and (problem := run.stop(is_closing=True)):
            ask(owner, "A run is training", problem, (Choice("", "Close", style="accent"),), lambda _: None)
        elif answer:
            run.detach()
            close()

    ask(
        owner,
        "A run is training",
        f"{run.folder.name} is at {place}. It runs in its own process and does not need this window.",
        choices,
        chosen,
        is_over=lambda: not run.is_alive,
    )
