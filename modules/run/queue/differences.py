"""The settings in which the entries of a queue differ from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from modules.config import ConfigError, Option, TrainConfig, dump, is_active, options
from modules.run.queue.entries import Entry
from modules.run.queue.folder import RunQueue

MOST_COMPARED: Final = 100  # entries; each is a file to read
_NOT_COMPARED: Final = ("run_name", "runs_dir", "device_ids")  # which an entry has, or shows, anyway
_SHOWN_OF_ITEM: Final = {"concepts": "path", "samples": "prompt", "parts": "part"}

Data = dict[str, Any]


class Differences:
    """Reads each entry's config once, until its devices change. Not for several threads at a time."""

    def __init__(self) -> None:
        self._configs: dict[tuple[int, str], Data] = {}

    def of(self, queue: RunQueue, entries: Sequence[Entry]) -> dict[int, list[tuple[Option, object]]]:
        """By number the settings, and their values, that are not the same in all entries of its kind.

        There are two kinds, those that wait or run and those that have ended. What has no effect is left out, as is an
        entry whose config cannot be read.
        """
        compared = entries[:MOST_COMPARED]
        before, self._configs = self._configs, {}
        for entry in compared:
            key = (entry.number, str(entry.devices))
            self._configs[key] = before.get(key) or _read(queue, entry)
        found: dict[int, list[tuple[Option, object]]] = {}
        for is_open in (True, False):
            kind = {entry.number for entry in compared if entry.is_open is is_open}
            found |= differing({key[0]: data for key, data in self._configs.items() if data and key[0] in kind})
        return found


def differing(configs: Mapping[int, Data]) -> dict[int, list[tuple[Option, object]]]:
    """By number the settings, and their values, that are not the same in all `configs`, which are as dumped."""
    found: dict[int, list[tuple[Option, object]]] = {number: [] for number in configs}
    for option in options(TrainConfig):
        if "*" in option.path or option.path in _NOT_COMPARED:
            continue
        values = {
            number: _value(data, option.path) if is_active(option, data) else None for number, data in configs.items()
        }
        if len({repr(value) for value in values.values()}) > 1:
            for number, value in values.items():
                if is_active(option, configs[number]):
                    found[number].append((option, value))
    return found


def _read(queue: RunQueue, entry: Entry) -> Data:
    try:
        return dump(queue.load(entry))
    except (ConfigError, OSError):
        return {}


def _value(data: object, path: str) -> object:
    for name in path.split("."):
        data = data.get(name) if isinstance(data, Mapping) else None
    key = _SHOWN_OF_ITEM.get(path)
    if key is not None and isinstance(data, list):
        return [item.get(key) for item in data if isinstance(item, Mapping)]
    return data
