"""Applies the tables to another trainer's settings, and reports every setting that no table knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.io.files import dump
from modules.config.io.text_formats import Data
from modules.config.options import find_option, is_active
from modules.config.train_config import TrainConfig
from modules.files import is_secret_name
from modules.importers.dotted import flatten, put, remove
from modules.importers.paths import PathResolver
from modules.importers.readers import is_path
from modules.importers.report import ImportEntry, ImportReport
from modules.importers.rules import (
    EMPTY_VALUES,
    Assignment,
    ChangedValue,
    CombinedRule,
    PathValue,
    Rule,
    Table,
    Unsupported,
    UnsupportedValueError,
    is_default,
)
from modules.importers.source_file import read_file

HIDDEN = "(hidden)"
UNKNOWN = "the import does not know this setting"
# What people look for first in a report, and the lists, which may be long; everything else is in between.
_FIRST = ("family", "method", "base_model")
_LISTS = ("parts", "concepts", "samples")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?<!\.safetensors)(?<!\.ckpt)", re.ASCII)


class Translation:
    """Collects the result of each setting; `data` is the config so far, in plain values."""

    def __init__(self, trainer: str, paths: PathResolver) -> None:
        self.trainer = trainer
        self.paths = paths
        self.data: Data = {}
        self.imported: list[ImportEntry] = []
        self.changed: list[ImportEntry] = []
        self.not_imported: list[ImportEntry] = []
        self.held: list[str] = []  # why there is to be no base model: what the file trains instead
        self.lines: Mapping[str, int] = {}  # of the file, by setting: shown with those that are not imported

    def apply(
        self,
        table: Table,
        given: Mapping[str, object],
        source_prefix: str = "",
        target_prefix: str = "",
        written_as: Mapping[str, str] | None = None,
    ) -> None:
        """Translate one group; the prefixes, such as "concepts.0.", are put before the names.

        `written_as` maps settings that are elsewhere in the file to their full names.
        """
        known = table.keys()
        groups = {name for row in table.unsupported if row.is_group for name in row.names} | set(known)
        found = flatten(given, groups)
        for name in [name for name in found if table.renamed.get(name) in found]:
            self.skip(source_prefix + name, found.pop(name), f"{table.renamed[name]} takes precedence")
        written = {table.renamed.get(name, name): name for name in found}
        values = {table.renamed.get(name, name): value for name, value in found.items()}
        shown = {
            name: _shown(name, written_as or {}) or source_prefix + written.get(name, name)
            for name in {**known, **values}
        }
        for rule in table.rules:
            entries = (
                self._combined(rule, values, target_prefix)
                if isinstance(rule, CombinedRule)
                else self._single(rule, values, target_prefix)
            )
            for entry in entries:
                names = ", ".join(shown.get(name, source_prefix + name) for name in entry.source.split(", "))
                placed = replace(entry, source=names, target=target_prefix + entry.target if entry.target else "")
                self.add(self._resolve_path(placed))
        for name, value in values.items():
            if name not in known:
                self._skip_unknown(name, value, shown[name], table.unsupported)

    def add(self, entry: ImportEntry) -> None:
        """Add one entry to its list, and its value to the config."""
        if not entry.target:
            self.not_imported.append(entry)
            return
        put(self.data, entry.target, entry.new_value)
        (self.changed if entry.why else self.imported).append(entry)

    def skip(self, source: str, value: object, why: str) -> None:
        """Report a setting as not imported; a password is not shown."""
        self.not_imported.append(ImportEntry(source, HIDDEN if is_secret_name(source) else value, why=why))

    def read_file(
        self, source: str, name: object, missing: str = "", read: Callable[[Path], object] = read_file
    ) -> object:
        """The content of the file that the setting `source` refers to; None, and reported, if it cannot be read."""
        file = self.paths.find(name) if is_path(name) else None
        if file is None:
            self.skip(source, name, missing or "there is no such file in this folder or its parents")
            return None
        try:
            content = read(file)
        except ConfigError as error:
            self.skip(source, name, str(error).rstrip("."))
            return None
        self.paths.files.append(file)
        return content

    def put(self, path: str, value: object) -> None:
        """Set a value that stems from no setting of the other trainer."""
        put(self.data, path, value)

    def count(self, name: str) -> int:
        """The number of items that a list of the config has so far."""
        found = self.data.get(name)
        return len(found) if isinstance(found, list) else 0

    def change(self, path: str, value: object, why: str) -> None:
        """Replace an imported value by another one, and report why it differs."""
        found = [entry for entry in (*self.imported, *self.changed) if entry.target == path]
        self.imported = [entry for entry in self.imported if entry.target != path]
        self.changed = [entry for entry in self.changed if entry.target != path]
        for entry in found:
            reason = "; ".join(filter(None, (entry.why, why)))
            self.changed.append(replace(entry, new_value=value, why=reason))
        put(self.data, path, value)

    def withdraw(self, path: str, why: str) -> bool:
        """Remove the value at a path again and report it as not imported; False if there is none."""
        found = False
        for entries in (self.imported, self.changed):
            for entry in [item for item in entries if _covers(item.target, path)]:
                entries.remove(entry)
                left_out = ImportEntry(entry.source, entry.value, why=why, given=entry.given)
                if left_out not in self.not_imported:  # one setting may be several here
                    self.not_imported.append(left_out)
                found = remove(self.data, entry.target) or found
        return remove(self.data, path) or found

    def close_gaps(self) -> None:
        """Let the items that follow withdrawn ones of a list have their numbers."""
        for name, items in self.data.items():
            if not isinstance(items, list) or None not in items:
                continue
            kept = [number for number, item in enumerate(items) if item is not None]
            moved = {f"{name}.{old}": f"{name}.{new}" for new, old in enumerate(kept)}
            self.imported, self.changed = (
                [replace(each, target=_moved(each.target, moved)) for each in entries]
                for entries in (self.imported, self.changed)
            )
            self.data[name] = [item for item in items if item is not None]

    def hold(self, why: str) -> None:
        """Have `take_held` leave no base model, so that nothing starts that trains something else than there."""
        self.held.append(why)

    def take_held(self) -> None:
        """Take the base model away if `hold` was called; at the end, since other settings depend on it."""
        for why in self.held:
            self.withdraw("base_model", why)

    def report(self) -> ImportReport:
        """The report so far."""
        imported, changed, not_imported = (
            tuple(sorted(entries, key=_rank))
            for entries in (self.imported, self.changed, map(self._with_line, self.not_imported))
        )
        files, problems = tuple(self.paths.files), tuple(f"base_model is left empty: {why}" for why in self.held)
        return ImportReport(self.trainer, files, imported, changed, not_imported, problems)

    def _with_line(self, entry: ImportEntry) -> ImportEntry:
        """The entry, with the line of its setting if that is known."""
        line = self.lines.get(entry.source.partition(", ")[0])
        return entry if line is None else replace(entry, source=f"{entry.source} (line {line})")

    def _combined(self, rule: CombinedRule, values: Mapping[str, object], target_prefix: str) -> list[ImportEntry]:
        given = {name: values[name] for name in rule.keys if name in values}
        entries = []
        reported: set[str] = set()
        data = deepcopy(self.data)  # with the results of this rule so far, on which the next may depend
        for assignment in _assignments(rule, values, given):
            named = [name for name in assignment.keys or tuple(rule.keys) if name in given]
            target = target_prefix + assignment.target if assignment.target else ""
            is_relevant = bool(target) and _is_relevant(target, assignment.value, data)
            if target:
                put(data, target, assignment.value)
            if not named and not is_relevant:
                continue
            if assignment.quiet:
                put(self.data, target, assignment.value)
                continue
            reported.update(named)
            names = named or [(assignment.keys or tuple(rule.keys))[0]]
            shown = [given.get(name, rule.keys[name]) for name in names]
            value = shown[0] if len(shown) == 1 else shown
            entries.append(
                ImportEntry(
                    ", ".join(names), value, assignment.target, assignment.value, assignment.why, given=bool(named)
                )
            )
        silent = [name for name in given if name not in reported and not is_default(given[name], rule.keys[name])]
        return [
            *entries,
            *(ImportEntry(name, given[name], why="it has no effect with the other settings") for name in silent),
        ]

    def _single(self, rule: Rule, values: Mapping[str, object], target_prefix: str) -> list[ImportEntry]:
        is_given = rule.source in values
        if not is_given and rule.optional:
            return []
        value = values.get(rule.source, rule.default)
        try:
            found = rule.read(value)
        except UnsupportedValueError as error:
            is_set = is_given and not is_default(value, rule.default)
            return [ImportEntry(rule.source, value, why=str(error))] if is_set else []
        if found is None and value in EMPTY_VALUES and not _may_be_empty(target_prefix + rule.target):
            return []  # not set there, and Tandem has a default
        why = rule.why if is_given and not is_default(value, rule.default) else ""
        if isinstance(found, ChangedValue):
            why = found.why
            found = found.value
        if not is_given and not _is_relevant(target_prefix + rule.target, found, self.data):
            return []
        return [ImportEntry(rule.source, value, rule.target, found, why, given=is_given)]

    def _resolve_path(self, entry: ImportEntry) -> ImportEntry:
        """The entry with its path resolved, if its value is a path."""
        if not isinstance(entry.new_value, PathValue):
            return entry
        text, kind, separator = entry.new_value.text, entry.new_value.kind, entry.new_value.separator
        if separator:
            each = [
                self._resolve_path(replace(entry, new_value=PathValue(part, kind))) for part in text.split(separator)
            ]
            whys = dict.fromkeys(one.why for one in each if one.why)
            return replace(entry, new_value=separator.join(str(one.new_value) for one in each), why="; ".join(whys))
        found = self.paths.find(text)
        if found is not None or kind == "output":
            return replace(entry, new_value=self.paths.path(text))
        if kind == "model" and _HUB_NAME.fullmatch(text):
            return replace(entry, new_value=text)
        why = "there is no such file or folder on this machine: choose another one"
        why = "; ".join(filter(None, (entry.why, why)))
        return replace(entry, new_value=self.paths.path(text), why=why)

    def _skip_unknown(self, name: str, value: object, shown: str, unsupported: Iterable[Unsupported]) -> None:
        known = next((row for row in unsupported if any(fnmatchcase(name, each) for each in row.names)), None)
        if known is None:
            self.skip(shown, value, UNKNOWN)
        elif not is_default(value, known.default):
            self.skip(shown, HIDDEN if known.secret else value, known.why)


def _rank(entry: ImportEntry) -> int:
    """Its place in the report; entries of one rank stay in the order in which they were found."""
    head = entry.target.partition(".")[0]
    if entry.target in _FIRST:
        return _FIRST.index(entry.target)
    if head in _LISTS:
        return len(_FIRST) + 1 + _LISTS.index(head)
    is_item = not entry.target and any(part.isdecimal() for part in re.split(r"[./]", entry.source))
    return len(_FIRST) + (1 + len(_LISTS) if is_item else 0)


def _assignments(rule: CombinedRule, values: Mapping[str, object], given: Mapping[str, object]) -> list[Assignment]:
    used = {name: values.get(name, default) for name, default in rule.uses.items()}
    try:
        return list(rule.read({**rule.keys, **used, **given}))
    except UnsupportedValueError as error:
        return [Assignment("", why=str(error))] if given else []


def _shown(name: str, written_as: Mapping[str, str]) -> str:
    """The full name of a setting, or of its group, elsewhere in the file; empty if it is not there."""
    if name in written_as:
        return written_as[name]
    group, dot, rest = name.partition(".")
    return f"{written_as[group]}.{rest}" if dot and group in written_as else ""


def _is_relevant(target: str, value: object, data: Data) -> bool:
    """Whether a default of the other trainer differs from Tandem's, and matters with the settings in `data`."""
    option = find_option(TrainConfig, target)
    if option is None or option.default == value:
        return option is None
    index = next((int(part) for part in target.split(".") if part.isdecimal()), 0)
    return is_active(option, {**_defaults(), **data}, index)


@cache
def _defaults() -> Data:
    return dump(TrainConfig())


def _may_be_empty(target: str) -> bool:
    option = find_option(TrainConfig, target)
    return option is None or option.optional


def _moved(target: str, places: Mapping[str, str]) -> str:
    name, _, rest = target.partition(".")
    number, dot, last = rest.partition(".")
    item = f"{name}.{number}"
    return places.get(item, item) + dot + last if number.isdecimal() else target


def _covers(target: str, path: str) -> bool:
    return target == path or path.startswith(f"{target}.") or target.startswith(f"{path}.")
