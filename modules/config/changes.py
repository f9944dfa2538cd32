"""Differences between the config of a backup and that of the run that resumes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from modules.config.explain import format_value
from modules.config.options import Option, is_active, options
from modules.config.section import Resume, Section

# The setting that identifies the items of a list; items of other lists are matched by their position.
_ITEM_KEYS = {"parts": "part"}


@dataclass(frozen=True)
class Change:
    """One setting whose value has changed; `path` includes the number of the list item."""

    path: str
    resume: Resume
    before: object
    now: object

    def __str__(self) -> str:
        return f"{self.path} {format_value(self.before)} -> {format_value(self.now)}"


def find_changes(model: type[Section], before: Mapping[str, object], now: Mapping[str, object]) -> list[Change]:
    """The active settings that differ and are not free to change; both configs as dumped, defaults may be missing.

    Lists of sections are compared item by item; if their lengths differ, only that is returned.
    """
    found: list[Change] = []
    for option in options(model):
        if option.resume != "free" and "*" not in option.path and is_active(option, now):
            was, is_ = _value(before, option), _value(now, option)
            if option.type == "list":
                found += _changed_items(model, option, _groups(was), _groups(is_))
            elif was != is_:
                found.append(Change(option.path, option.resume, was, is_))
    return found


def _changed_items(
    model: type[Section],
    list_option: Option,
    before: Sequence[Mapping[str, object]],
    now: Sequence[Mapping[str, object]],
) -> list[Change]:
    """The differences in a list's items; a submodule that is not listed counts as one with the defaults."""
    inside = [
        replace(each, path=each.name) for each in options(model) if each.path.startswith(f"{list_option.path}.*.")
    ]
    pairs = dict(enumerate(zip(before, now, strict=False)))
    if (key := _ITEM_KEYS.get(list_option.path)) is not None:
        previous, current = ({str(each.get(key)): each for each in items} for items in (before, now))
        names = dict.fromkeys([*current, *previous])
        pairs = {i: (previous.get(n, {key: n}), current.get(n, {key: n})) for i, n in enumerate(names)}
    elif len(before) != len(now):
        return [Change(list_option.path, list_option.resume, f"{len(before)} in total", f"{len(now)} in total")]
    return [
        Change(f"{list_option.path}.{index}.{option.name}", option.resume, _value(was, option), _value(is_, option))
        for index, (was, is_) in pairs.items()
        for option in inside
        if option.resume != "free" and _value(was, option) != _value(is_, option)
    ]


def _value(data: Mapping[str, object], option: Option) -> object:
    """The value in `data`, or the default."""
    value: object = data
    for name in option.path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return option.default
        value = value[name]
    return value


def _groups(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, Sequence) else []
