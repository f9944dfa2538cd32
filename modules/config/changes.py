"""What differs between the config of a backup and that of the run which goes on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from modules.config.explain import show
from modules.config.options import Option, is_active, options
from modules.config.section import Resume, Section

# A list's items belong together by this name of theirs; by their place where it has none.
_NAMED_BY = {"parts": "part"}


@dataclass(frozen=True)
class Change:
    """One setting that has another value now; `path` with the number of the list item."""

    path: str
    resume: Resume
    before: object
    now: object

    def __str__(self) -> str:
        return f"{self.path} {show(self.before)} -> {show(self.now)}"


def changes(model: type[Section], before: Mapping[str, object], now: Mapping[str, object]) -> list[Change]:
    """Settings that matter now and are not free to change, where they differ; both as dumped, defaults may be missing.

    Lists of groups are compared item by item; where they have not as many, only that is told.
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
    model: type[Section], of: Option, before: Sequence[Mapping[str, object]], now: Sequence[Mapping[str, object]]
) -> list[Change]:
    """What differs in the items of a list; a part that is not named is as one that is named and has the defaults."""
    inside = [replace(each, path=each.name) for each in options(model) if each.path.startswith(f"{of.path}.*.")]
    pairs = dict(enumerate(zip(before, now, strict=False)))
    if (key := _NAMED_BY.get(of.path)) is not None:
        former, present = ({str(each.get(key)): each for each in items} for items in (before, now))
        names = dict.fromkeys([*present, *former])
        pairs = {place: (former.get(n, {key: n}), present.get(n, {key: n})) for place, n in enumerate(names)}
    elif len(before) != len(now):
        return [Change(of.path, of.resume, f"{len(before)} in all", f"{len(now)} in all")]
    return [
        Change(f"{of.path}.{place}.{option.name}", option.resume, _value(was, option), _value(is_, option))
        for place, (was, is_) in pairs.items()
        for option in inside
        if option.resume != "free" and _value(was, option) != _value(is_, option)
    ]


def _value(data: Mapping[str, object], option: Option) -> object:
    """The value as it stands there, or the default."""
    value: object = data
    for name in option.path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return option.default
        value = value[name]
    return value


def _groups(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, Sequence) else []
