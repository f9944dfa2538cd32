"""Closing the window during a run, or while the queue is at work: leave them running, or stop them after a backup."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from app.runs.control import RunControl
from app.shell.ask import Choice, ask
from app.state import AppState
from modules.config import ConfigError
from modules.files import printable
from modules.run.queue.entries import Queue
from modules.run.queue.folder import RunQueue

_CANCEL: Final = Choice("", "Cancel", style="quiet")
_A_RUN: Final = "A run is training"
_THE_QUEUE: Final = "The queue is at work"


def confirm_close(owner: tk.Misc, state: AppState, close: Callable[[], object]) -> None:
    """Call `close`; if a run is active or the queue has work, ask first whether to stop it, leave it or cancel."""
    queue = RunQueue(state.runs_dir)
    work = _work_of(queue)
    run = state.run if state.run is not None and state.run.is_alive else None

    def ask_about_queue() -> None:
        if work is None:
            close()
        else:
            _ask_about_queue(owner, queue, work, close)

    is_of_queue = run is not None and work is not None and run.folder.name in _running(work)
    if run is None or is_of_queue:
        ask_about_queue()
    else:
        _ask_about_run(owner, run, ask_about_queue)


def _work_of(queue: RunQueue) -> Queue | None:
    """What a process works off now; None if there is none, or nothing left to do: then it ends with the window."""
    with suppress(ConfigError):
        found = queue.read() if queue.has_runner() else None
        if found is not None and (_running(found) or (found.waiting and found.wanted == "run")):
            return found
    return None


def _running(queue: Queue) -> list[str]:
    return [entry.name for entry in queue.entries if entry.state == "running"]


def _ask_about_queue(owner: tk.Misc, queue: RunQueue, work: Queue, leave: Callable[[], object]) -> None:
    running, waiting = _running(work), len(work.waiting) if work.wanted == "run" else 0
    said = [f"{' and '.join(running)} {'is' if len(running) == 1 else 'are'} training"] if running else []
    if waiting:
        said.append(f"{waiting} {'more ' * bool(running)}{'waits' if waiting == 1 else 'wait'} to be started")
    choices = (
        _CANCEL,
        Choice("stop", "Stop the queue", help="What runs stops after a backup and waits again; nothing more starts."),
        Choice("leave", "Leave it working", style="accent", help="The Queue page shows it when you open Tandem again."),
    )

    def chosen(answer: str) -> None:
        if answer == "stop":
            try:
                queue.want("stop")
            except ConfigError as error:
                ask(owner, _THE_QUEUE, str(error), (Choice("", "Close", style="accent"),), lambda _: None)
                return
        if answer:
            leave()

    ask(
        owner,
        _THE_QUEUE,
        f"{', and '.join(said)}. The queue has a process of its own and does not need this window.",
        choices,
        chosen,
        is_over=lambda: _work_of(queue) is None,
    )


def _ask_about_run(owner: tk.Misc, run: RunControl, leave: Callable[[], object]) -> None:
    with run.view.lock:
        step = run.view.step
    place = "its start" if step is None else f"step {step.step:,}"
    choices = (
        _CANCEL,
        Choice("stop", "Stop after a backup", help="The run stops after the current step."),
        Choice("leave", "Leave it running", style="accent", help="The window reconnects to it when you open it again."),
    )

    def chosen(answer: str) -> None:
        if answer == "stop" and (problem := run.stop(is_closing=True)):
            ask(owner, _A_RUN, problem, (Choice("", "Close", style="accent"),), lambda _: None)
        elif answer:
            leave()

    ask(
        owner,
        _A_RUN,
        f"{printable(run.folder.name)} is at {place}. It runs in its own process and does not need this window.",
        choices,
        chosen,
        is_over=lambda: not run.is_alive,
    )
