"""How many steps the waiting entries of a queue will take, counted in the background, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.background import Background
from app.curves.run_length import SETTINGS, count_steps
from app.monitor.queue_texts import UNKNOWN
from modules.config import ConfigError, dump
from modules.run.queue.differences import MOST_COMPARED
from modules.run.queue.entries import Entry
from modules.run.queue.folder import RunQueue

_Key = tuple[str, int, str]


class QueueLengths:
    """`count` counts what is not known yet, once for each choice of GPUs, and calls `changed` for each new number."""

    def __init__(self, background: Background, changed: Callable[[], object]) -> None:
        self._background, self._changed = background, changed
        self._steps: dict[_Key, int] = {}
        self._is_counting = False

    def known(self, queue: RunQueue, entries: Iterable[Entry]) -> dict[int, int]:
        """The steps of those entries that have been counted, by their numbers; UNKNOWN if they could not be."""
        keys = {entry.number: _key(queue, entry) for entry in entries}
        return {number: self._steps[key] for number, key in keys.items() if key in self._steps}

    def count(self, queue: RunQueue, entries: Iterable[Entry]) -> None:
        """Count those of the entries that wait: what has started says it itself."""
        due = [entry for entry in entries if entry.state == "waiting"][:MOST_COMPARED]
        due = [entry for entry in due if _key(queue, entry) not in self._steps]
        if self._is_counting or not due:
            return
        self._is_counting = True
        entry = due[0]

        def counted(steps: int) -> None:
            self._is_counting = False
            self._steps[_key(queue, entry)] = steps
            self._changed()
            self.count(queue, due[1:])

        self._background.run(lambda: _steps(queue, entry), counted)


def _key(queue: RunQueue, entry: Entry) -> _Key:
    return str(queue.runs_dir), entry.number, str(entry.devices)


def _steps(queue: RunQueue, entry: Entry) -> int:
    """The steps of an entry with two limits: of others the settings say enough."""
    try:
        config = queue.load(entry)
    except (ConfigError, OSError):
        return UNKNOWN
    if config.max_steps is None:
        return UNKNOWN
    data = dump(config)
    settings = {name: data[name] for name in SETTINGS if data.get(name) is not None}
    return count_steps(settings, config).steps or UNKNOWN
