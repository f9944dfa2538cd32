"""Their settings on the way into ours: the tables are applied, and whatever no table knows is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from modules.config.files import dump
from modules.config.importing.places import Places
from modules.config.importing.report import Entry, ImportReport
from modules.config.importing.rules import (
    Changed,
    Joint,
    Located,
    NotCarriedError,
    Outcome,
    Rule,
    Table,
    Without,
    is_default,
)
from modules.config.options import find_option, is_active
from modules.config.text_formats import Data
from modules.config.train_config import TrainConfig

HIDDEN = "(hidden)"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?<!\.safetensors)(?<!\.ckpt)", re.ASCII)


class Translation:
    """Collects what becomes of each setting; `data` is the config so far, in plain values."""

    def __init__(self, trainer: str, places: Places) -> None:
        self.trainer = trainer
        self.places = places
        self.data: Data = {}
        self.taken: list[Entry] = []
        self.changed: list[Entry] = []
        self.lost: list[Entry] = []

    def apply(
        self,
        table: Table,
        given: Mapping[str, object],
        theirs: str = "",
        ours: str = "",
        written_as: Mapping[str, str] | None = None,
    ) -> None:
        """Translate one group of theirs; `theirs` and `ours` go before the names, such as "concepts.0.".

        `written_as` are the whole names of settings that stand elsewhere in the file.
        """
        known = table.keys()
        whole = {rule.theirs for rule in table.without if rule.whole} | set(known)
        found = flat(given, whole)
        for name in [name for name in found if table.renamed.get(name) in found]:
            self.lose(theirs + name, found.pop(name), f"{table.renamed[name]} counts more")
        written = {table.renamed.get(name, name): name for name in found}
        values = {table.renamed.get(name, name): value for name, value in found.items()}
        shown = {
            name: _shown(name, written_as or {}) or theirs + written.get(name, name) for name in {**known, **values}
        }
        for rule in table.rules:
            entries = self._joint(rule, values, ours) if isinstance(rule, Joint) else self._single(rule, values, ours)
            for entry in entries:
                names = ", ".join(shown.get(name, theirs + name) for name in entry.theirs.split(", "))
                placed = replace(entry, theirs=names, ours=ours + entry.ours if entry.ours else "")
                self.add(self._located(placed))
        for name, value in values.items():
            if name not in known:
                self._leave(name, value, shown[name], table.without)

    def add(self, entry: Entry) -> None:
        """Put one entry into its list, and its value into the config."""
        if not entry.ours:
            self.lost.append(entry)
            return
        put(self.data, entry.ours, entry.becomes)
        (self.changed if entry.why else self.taken).append(entry)

    def lose(self, theirs: str, value: object, why: str) -> None:
        """Tell that something is not carried over."""
        self.lost.append(Entry(theirs, value, why=why))

    def put(self, path: str, value: object) -> None:
        """Set a value of ours that no setting of theirs speaks for."""
        put(self.data, path, value)

    def withdraw(self, path: str, why: str) -> bool:
        """Take what stands at a path of ours out again; False where nothing does."""
        found = False
        for entries in (self.taken, self.changed):
            for entry in [one for one in entries if _covers(one.ours, path)]:
                entries.remove(entry)
                self.lost.append(Entry(entry.theirs, entry.value, why=why, given=entry.given))
                found = remove(self.data, entry.ours) or found
        return remove(self.data, path) or found

    def report(self) -> ImportReport:
        """The three lists as they stand."""
        files = tuple(self.places.files)
        return ImportReport(self.trainer, files, tuple(self.taken), tuple(self.changed), tuple(self.lost))

    def _joint(self, rule: Joint, values: Mapping[str, object], ours: str) -> list[Entry]:
        given = {name: values[name] for name in rule.keys if name in values}
        entries = []
        told: set[str] = set()
        for outcome in _outcomes(rule, values, given):
            named = [name for name in outcome.keys or tuple(rule.keys) if name in given]
            if not named and not (outcome.ours and self._matters(ours + outcome.ours, outcome.value)):
                continue
            if outcome.quiet:
                put(self.data, ours + outcome.ours, outcome.value)
                continue
            told.update(named)
            names = named or [(outcome.keys or tuple(rule.keys))[0]]
            shown = [given.get(name, rule.keys[name]) for name in names]
            value = shown[0] if len(shown) == 1 else shown
            entries.append(Entry(", ".join(names), value, outcome.ours, outcome.value, outcome.why, given=bool(named)))
        silent = [name for name in given if name not in told and not is_default(given[name], rule.keys[name])]
        return [*entries, *(Entry(name, given[name], why="the other settings leave it no effect") for name in silent)]

    def _single(self, rule: Rule, values: Mapping[str, object], ours: str) -> list[Entry]:
        is_given = rule.theirs in values
        if not is_given and not rule.ask:
            return []
        value = values.get(rule.theirs, rule.default)
        try:
            found = rule.read(value)
        except NotCarriedError as error:
            return [Entry(rule.theirs, value, why=str(error))] if is_given else []
        why = rule.why if is_given and not is_default(value, rule.default) else ""
        if isinstance(found, Changed):
            why = found.why
            found = found.value
        if not is_given and not self._matters(ours + rule.ours, found):
            return []
        return [Entry(rule.theirs, value, rule.ours, found, why, given=is_given)]

    def _matters(self, ours: str, value: object) -> bool:
        """Whether a value that the file does not mention differs from what Tandem would do anyway."""
        option = find_option(TrainConfig, ours)
        if option is None or option.default == value:
            return option is None
        index = next((int(part) for part in ours.split(".") if part.isdecimal()), 0)
        return is_active(option, {**_defaults(), **self.data}, index)

    def _located(self, entry: Entry) -> Entry:
        """The entry with its path in full, where it is one."""
        if not isinstance(entry.becomes, Located):
            return entry
        text, kind = entry.becomes.text, entry.becomes.kind
        found = self.places.find(text)
        if found is not None or kind == "new":
            return replace(entry, becomes=self.places.path(text))
        if kind == "model" and _HUB_NAME.fullmatch(text):
            return replace(entry, becomes=text)
        why = "there is no such file or folder on this machine: choose it again"
        return replace(entry, becomes=self.places.path(text), why=why)

    def _leave(self, name: str, value: object, shown: str, without: Iterable[Without]) -> None:
        known = next((row for row in without if fnmatchcase(name, row.theirs)), None)
        if known is None:
            self.lose(shown, value, "this import does not know the setting")
        elif not is_default(value, known.default):
            self.lose(shown, HIDDEN if known.secret else value, known.why)


def flat(given: Mapping[str, object], whole: Iterable[str] = ()) -> dict[str, object]:
    """Groups within groups by dotted names, but for those that are to stay whole."""
    found: dict[str, object] = {}
    stack: list[tuple[str, object]] = [(str(name), value) for name, value in reversed(list(given.items()))]
    while stack:
        name, value = stack.pop()
        if isinstance(value, Mapping) and value and name not in whole:
            stack.extend((f"{name}.{inner}", one) for inner, one in reversed(list(value.items())))
        else:
            found[name] = value
    return found


def put(data: Data, path: str, value: object) -> None:
    """Set a value at a dotted path; groups and list items on the way are made."""
    *parents, last = path.split(".")
    place: Data | list[object] = data
    for part, following in zip(parents, [*parents, last][1:], strict=True):
        if isinstance(place, list):
            while int(part) >= len(place):
                place.append({})
            inner = place[int(part)]
        else:
            inner = place.setdefault(part, [] if following.isdecimal() else {})
        assert isinstance(inner, (dict, list))
        place = inner
    if isinstance(place, list):
        place.append(value)
    else:
        place[last] = value


def remove(data: Data, path: str) -> bool:
    """Delete what stands at a dotted path; False where nothing does."""
    *parents, last = path.split(".")
    place: object = data
    for part in parents:
        if isinstance(place, list) and part.isdecimal() and int(part) < len(place):
            place = place[int(part)]
        else:
            place = place.get(part) if isinstance(place, dict) else None
    if isinstance(place, dict) and last in place:
        del place[last]
        return True
    return False


def _outcomes(rule: Joint, values: Mapping[str, object], given: Mapping[str, object]) -> list[Outcome]:
    used = {name: values.get(name, default) for name, default in rule.uses.items()}
    try:
        return list(rule.read({**rule.keys, **used, **given}))
    except NotCarriedError as error:
        return [Outcome("", why=str(error))] if given else []


def _shown(name: str, written_as: Mapping[str, str]) -> str:
    """How a setting, or the group that it is in, is written elsewhere in the file; empty where it is not."""
    if name in written_as:
        return written_as[name]
    group, dot, rest = name.partition(".")
    return f"{written_as[group]}.{rest}" if dot and group in written_as else ""


@cache
def _defaults() -> Data:
    return dump(TrainConfig())


def _covers(ours: str, path: str) -> bool:
    return ours == path or path.startswith(f"{ours}.") or ours.startswith(f"{path}.")
