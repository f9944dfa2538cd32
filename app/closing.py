"""Closing the window while a run goes on: leave it running, or stop it after a backup."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app import texts
from app.ask import Choice, ask
from app.state import AppState


def close_gently(owner: tk.Misc, state: AppState, close: Callable[[], object]) -> None:
    """Call `close` at once where nothing is being trained; otherwise after the answer, unless that is to stay."""
    run = state.run
    if run is None or not run.is_alive:
        close()
        return
    with run.view.lock:
        step = run.view.step
    where = texts.CLOSE_START if step is None else texts.CLOSE_STEP.format(step=f"{step.step:,}")
    choices = (
        Choice("", texts.CANCEL, style="quiet"),
        Choice("stop", texts.CLOSE_STOP, help=texts.CLOSE_STOP_HELP),
        Choice("leave", texts.CLOSE_LEAVE, style="accent", help=texts.CLOSE_LEAVE_HELP),
    )

    def chosen(answer: str) -> None:
        if answer == "stop" and (problem := run.stop(for_good=True)):
            ask(owner, texts.CLOSE_TITLE, problem, (Choice("", texts.CLOSE, style="accent"),), lambda _: None)
        elif answer:
            run.leave()
            close()

    ask(owner, texts.CLOSE_TITLE, texts.CLOSE_QUESTION.format(name=run.folder.name, where=where), choices, chosen)
