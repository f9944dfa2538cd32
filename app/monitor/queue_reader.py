"""Reads all that the Queue page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from app.monitor.queue_texts import UNKNOWN, loss_text, progress_text, settings_text, step_text
from app.monitor.run_list import RunList, RunSummary
from modules.run.queue.differences import Differences
from modules.run.queue.entries import Entry, Queue
from modules.run.queue.folder import RunQueue

_WITH_RUN: Final = ("running", "finished", "stopped", "failed")


@dataclass(frozen=True)
class QueueContent:
    """A queue as it was read; of each entry, by its number, the settings that differ, how far its run is or its losses,
    and how long the run was at work."""

    queue: Queue = field(default_factory=lambda: Queue(entries=[]))
    has_runner: bool = False
    settings: dict[int, str] = field(default_factory=dict)
    results: dict[int, str] = field(default_factory=dict)
    durations_s: dict[int, float] = field(default_factory=dict)


class QueueReader:
    """Keeps what has not changed. Usable from any thread, one at a time."""

    def __init__(self) -> None:
        self._differences = Differences()
        self._runs = RunList()

    def read(self, queue: RunQueue, steps: Mapping[int, int] = MappingProxyType({})) -> QueueContent:
        """Read the queue; `steps` of the entries that wait, by number, if they have been counted.

        Raises TandemError, OSError.
        """
        has_runner = queue.has_runner()
        found = queue.read().as_seen(has_runner=has_runner)
        differences = self._differences.of(queue, found.in_order())
        entries = {queue.run_folder(each).path: each for each in found.entries if each.state in _WITH_RUN}
        runs = [(entries[run.path], run) for run in self._runs.read(list(entries))]
        runs = [(_as_its_run(entry, run), run) for entry, run in runs]
        of_runs = {entry.number: entry for entry, _ in runs}
        found = found.replaced([of_runs.get(each.number, each) for each in found.entries])
        results = {entry.number: _result(run, entry) for entry, run in runs}
        steps = {**steps, **{entry.number: run.total_steps for entry, run in runs if run.total_steps}}
        uncounted = {each.number for each in found.entries if not each.is_open}
        steps = {**dict.fromkeys(uncounted, UNKNOWN), **steps}
        texts = {number: settings_text(each, steps.get(number)) for number, each in differences.items()}
        durations_s = {entry.number: run.duration_s for entry, run in runs}
        return QueueContent(found, has_runner, texts, results, durations_s)


def _as_its_run(entry: Entry, run: RunSummary) -> Entry:
    """One that failed or was stopped may have been resumed since, by no queue."""
    if entry.state not in ("failed", "stopped"):
        return entry
    if run.status.is_complete:
        return entry.changed(state="finished", reason="", exit_code=None)
    return entry.changed(reason="Resumed, not by the queue", exit_code=None) if run.status.is_alive else entry


def _result(run: RunSummary, entry: Entry) -> str:
    if entry.state == "running":
        text = progress_text(run.status, run.step, run.total_steps, run.loss)
        if run.status.kind in ("sending", "pulling") and run.status.fraction:
            return f"{text} ({run.status.fraction:.0%})"
        return f"on {entry.place}: {text}" if entry.place and run.status.kind == "training" else text
    if entry.state == "failed":
        return ""  # why is said instead
    losses = loss_text(run.loss, run.validation_loss)
    if entry.state == "finished" or run.step is None:
        return losses
    return ", ".join(filter(None, (step_text(run.step, run.total_steps), losses)))
