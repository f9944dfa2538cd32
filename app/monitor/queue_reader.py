"""Reads all that the Queue page shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.monitor.queue_texts import loss_text, settings_text
from app.monitor.run_list import RunList
from modules.run.queue.differences import Differences
from modules.run.queue.entries import Queue
from modules.run.queue.folder import RunQueue

_WITH_LOSSES: Final = ("finished", "stopped")


@dataclass(frozen=True)
class QueueContent:
    """A queue as it was read; of each entry, by its number, the settings that differ and the losses of its run."""

    queue: Queue = field(default_factory=lambda: Queue(entries=[]))
    has_runner: bool = False
    settings: dict[int, str] = field(default_factory=dict)
    losses: dict[int, str] = field(default_factory=dict)


class QueueReader:
    """Keeps what has not changed. Usable from any thread, one at a time."""

    def __init__(self) -> None:
        self._differences = Differences()
        self._runs = RunList()

    def read(self, queue: RunQueue) -> QueueContent:
        """Read the queue. Raises TandemError, OSError."""
        found = queue.read()
        differences = self._differences.of(queue, found.in_order())
        texts = {number: settings_text(each) for number, each in differences.items()}
        folders = {queue.run_folder(each).path: each.number for each in found.entries if each.state in _WITH_LOSSES}
        summaries = self._runs.read(list(folders))
        losses = {folders[each.path]: loss_text(each.loss, each.validation_loss) for each in summaries}
        return QueueContent(found, queue.has_runner(), texts, losses)
