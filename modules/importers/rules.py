"""The rules that map another trainer's settings to Tandem's; the docs are generated from the same tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Values = Mapping[str, object]  # by name; defaults if the file does not contain them
ANY = object()  # as a default: any value is ignored, because it does not affect training
EMPTY_VALUES: tuple[object, ...] = (None, "", False, 0, [], {})  # what other trainers' forms write for "not set"


class UnsupportedValueError(Exception):
    """Raised by a converter if Tandem does not support a value; the text says why and what to do."""


@dataclass(frozen=True)
class ChangedValue:
    """A converter's result whose meaning differs; `why` explains the difference."""

    value: object
    why: str


@dataclass(frozen=True)
class PathValue:
    """A converter's result for a path, which is then resolved: data must exist, a model may also be a name on the hub,
    and an output need not exist. With a `separator` between them, `text` is several.
    """

    text: str
    kind: Literal["data", "model", "output"]
    separator: str = ""


@dataclass(frozen=True)
class Rule:
    """Maps one setting to one of Tandem's; `default` is the other trainer's default.

    `read` converts a value or raises UnsupportedValueError. `why` says how the meaning differs, empty if it does not.
    If the file does not contain the setting, the default is imported, unless the rule is optional.
    """

    source: str
    target: str
    default: object
    read: Callable[[object], object]
    why: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Assignment:
    """A result of a combined rule: Tandem's path (empty: not imported), the value, and why the meaning differs.

    `keys` are the settings that it stems from; empty for all of the rule's settings in the file. A quiet one is not
    reported, because another assignment of the same setting is.
    """

    target: str
    value: object = None
    why: str = ""
    keys: tuple[str, ...] = ()
    quiet: bool = False


@dataclass(frozen=True)
class CombinedRule:
    """Maps settings that depend on each other; `target` and `why` are for the documentation.

    `uses` are settings of other rules that the converter also needs.
    """

    keys: Mapping[str, object]
    target: str
    read: Callable[[Values], Sequence[Assignment]]
    why: str = ""
    uses: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Unsupported:
    """Settings that Tandem does not support, as names or patterns separated by spaces; not reported at their default.

    `is_group`: the whole group is reported in one line. `secret`: the value is never shown.
    """

    sources: str
    why: str
    default: object = None
    is_group: bool = False
    secret: bool = False

    @property
    def names(self) -> list[str]:
        """Each name or pattern."""
        return self.sources.split()


@dataclass(frozen=True)
class Table:
    """The rules of one group of settings; `renamed` maps older names to current ones."""

    rules: tuple[Rule | CombinedRule, ...]
    unsupported: tuple[Unsupported, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def keys(self) -> dict[str, object]:
        """Every setting that has a rule, with its default."""
        found: dict[str, object] = {}
        for rule in self.rules:
            found.update(rule.keys if isinstance(rule, CombinedRule) else {rule.source: rule.default})
        return found

    def unsupported_defaults(self) -> dict[str, object]:
        """The default of every unsupported name or pattern."""
        return {name: row.default for row in self.unsupported for name in row.names}


def is_default(value: object, default: object) -> bool:
    """Whether a value means the same as the default, such as "0" and 0, or all ways to leave a field empty."""
    if default is ANY:
        return True
    if isinstance(value, str) and isinstance(default, (int, float)) and not isinstance(default, bool):
        try:
            value = float(value)
        except ValueError:
            return False
    if isinstance(value, bool) != isinstance(default, bool) and value not in EMPTY_VALUES:
        return False
    return value == default or (value in EMPTY_VALUES and default in EMPTY_VALUES)
