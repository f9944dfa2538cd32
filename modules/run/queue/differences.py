"""The settings that tell the entries of a queue apart, and those that describe a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from modules.config import ConfigError, Option, TrainConfig, dump, is_active, options
from modules.run.queue.entries import Entry
from modules.run.queue.folder import RunQueue

MOST_COMPARED: Final = 100  # entries; each is a file to read
_NOT_COMPARED: Final = ("run_name", "runs_dir", "device_ids")  # which an entry has, or shows, anyway
_FIRST: Final = ("concepts", "max_steps", "epochs", "method", "base_model", "learning_rate", "batch_size", "resolution")
_LAST: Final = ("family",)  # long, and alike in most queues
_DESCRIBE: Final = (*_FIRST, *_LAST)  # any run, as far as they are set
_SHOWN_OF_ITEM: Final = {"concepts": "path", "samples": "prompt", "parts": "part"}

Data = dict[str, Any]


class Differences:
    """Reads each entry's config once, until its devices change. Not for several threads at a time."""

    def __init__(self) -> None:
        self._configs: dict[tuple[int, str], Data] = {}

    def of(self, queue: RunQueue, entries: Sequence[Entry]) -> dict[int, list[tuple[Option, object]]]:
        """By number the settings, and their values: first those that differ in its kind, then what describes a run.

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
            configs = {key[0]: data for key, data in self._configs.items() if data and key[0] in kind}
            for number, settings in differing(configs).items():
                found[number] = [*settings, *describing(configs[number], {option.path for option, _ in settings})]
        return found


def describing(config: Data, but: Collection[str] = ()) -> list[tuple[Option, object]]:
    """Model, images, length and the like of a config as dumped, without what is empty and the paths in `but`."""
    by_path = {option.path: option for option in options(TrainConfig)}
    values = [(by_path[path], _value(config, path)) for path in _DESCRIBE if path not in but]
    return [(option, value) for option, value in values if value not in (None, "", []) and is_active(option, config)]


def differing(configs: Mapping[int, Data]) -> dict[int, list[tuple[Option, object]]]:
    """By number the settings, and their values, that are not the same in all `configs`, which are as dumped.

    What people tell runs by comes first: images, length, method. A setting that only some of them have, like those of
    LoRA beside a fine-tune, follows from another one; it is listed only if it differs among these, or from its default.
    """
    found: dict[int, list[tuple[Option, object]]] = {number: [] for number in configs}
    for option in sorted(options(TrainConfig), key=_place):
        if "*" in option.path or option.path in _NOT_COMPARED:
            continue
        values = {n: _value(data, option.path) for n, data in configs.items() if is_active(option, data)}
        known = [*values.values(), *([option.default] if len(values) < len(configs) else [])]
        if len(set(map(repr, known))) > 1:
            for number, value in values.items():
                found[number].append((option, value))
    return found


def _place(option: Option) -> int:
    """Where the setting stands among others; those that are not named keep their order in the middle."""
    if option.path in _LAST:
        return len(_FIRST) + 1 + _LAST.index(option.path)
    return _FIRST.index(option.path) if option.path in _FIRST else len(_FIRST)


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
