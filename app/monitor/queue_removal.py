"""Takes entries out of the queue, and takes back those that had not started."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Protocol

from app.shell.ask import Choice, ask
from modules.run.queue.entries import Entry, Queue
from modules.run.queue.folder import RunQueue


class Change(Protocol):
    """Makes a change in a thread, and calls `done` if it was made."""

    def __call__(self, change: Callable[[], object], done: Callable[[], object] | None = None) -> None: ...


class QueueRemoval:
    """`change` is what makes changes; `removed`, which outlives this, has number and place of what had not started."""

    def __init__(self, owner: tk.Misc, change: Change, removed: list[tuple[int, int]]) -> None:
        self._owner, self._change, self._removed = owner, change, removed

    def remove(self, queue: RunQueue, entry: Entry, waiting: list[int]) -> None:
        """Remove an entry; a run is stopped only after a question. `waiting`: the numbers of those that wait."""
        if entry.state == "running":
            self._ask(queue, entry)
        elif entry.state == "waiting" and entry.started is None:
            place = entry.number, waiting.index(entry.number)
            self._change(lambda: queue.remove(entry.number), lambda: self._removed.append(place))
        else:
            self._change(lambda: queue.remove(entry.number))

    def can_undo(self, queue: Queue) -> bool:
        """Whether one that had not started can be taken back."""
        left = {entry.number for entry in queue.entries if entry.never_started}
        return any(number in left for number, _ in self._removed)

    def undo(self, queue: RunQueue, found: Queue) -> None:
        """Let the one that was removed last wait again, where it was; `found` is what is in the queue."""
        left = {entry.number for entry in found.entries if entry.never_started}
        self._removed[:] = [each for each in self._removed if each[0] in left]
        if self._removed:
            number, place = self._removed.pop()
            self._change(lambda: queue.retry(number, place))

    def _ask(self, queue: RunQueue, entry: Entry) -> None:
        def answered(answer: str) -> None:
            if answer:
                self._change(lambda: queue.remove(entry.number, stop=True))

        ask(
            self._owner,
            f"Stop {entry.name}?",
            "It is running. It stops after a backup, so that Resume can continue it, and leaves the queue.",
            (Choice("stop", "Stop and remove", style="danger"), Choice("", "Keep it", style="accent")),
            answered,
        )
