"""How the settings of another trainer are written down: each rule is a row of a table, of code and of docs alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Values = Mapping[str, object]  # by their names; their default where the file says nothing
ANY = object()  # as a default: whatever it is, it says nothing about the training
BLANK: tuple[object, ...] = (None, "", False, 0, [], {})  # what forms write for "not set"


class NotCarriedError(Exception):
    """Raised by a reader: this value has no place in Tandem; the text says why and what to do."""


@dataclass(frozen=True)
class Changed:
    """A reader's answer where the value had to be changed in meaning; `why` is the rest of a sentence."""

    value: object
    why: str


@dataclass(frozen=True)
class Located:
    """A reader's answer for a path, which is then looked for: data must be there, a model may also be a name on the
    hub, and what is new will be made.
    """

    text: str
    kind: Literal["data", "model", "new"]


@dataclass(frozen=True)
class Rule:
    """One setting of theirs that becomes one of ours; `default` is what they do where the file says nothing.

    `read` turns a value into ours, or raises NotCarriedError. `why` tells how the meaning differs, empty if it does
    not. A rule with `ask` false does nothing where the file says nothing.
    """

    theirs: str
    ours: str
    default: object
    read: Callable[[object], object]
    why: str = ""
    ask: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a joint rule found: our path (empty: nothing of it is carried over), the value, and why it differs.

    `keys` are the settings of theirs that it speaks for; empty for all of the rule's that the file gives. A quiet one
    is not told, because another outcome of the same setting is.
    """

    ours: str
    value: object = None
    why: str = ""
    keys: tuple[str, ...] = ()
    quiet: bool = False


@dataclass(frozen=True)
class Joint:
    """Settings of theirs that only make sense together; `ours` and `why` are for the documentation.

    `uses` are settings that the reader looks at as well, but that other rules speak for.
    """

    keys: Mapping[str, object]
    ours: str
    read: Callable[[Values], Sequence[Outcome]]
    why: str = ""
    uses: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Without:
    """A setting of theirs, or a pattern for many, that Tandem has no place for; silent at their default.

    `whole`: a group is told in one line. `secret`: its value is never shown.
    """

    theirs: str
    default: object
    why: str
    whole: bool = False
    secret: bool = False


@dataclass(frozen=True)
class Table:
    """All that is known about one group of settings; `renamed` are older names of theirs, old to present."""

    rules: tuple[Rule | Joint, ...]
    without: tuple[Without, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def keys(self) -> dict[str, object]:
        """Every setting of theirs that has a rule, with their default."""
        found: dict[str, object] = {}
        for rule in self.rules:
            found.update(rule.keys if isinstance(rule, Joint) else {rule.theirs: rule.default})
        return found


def is_default(value: object, default: object) -> bool:
    """Whether a value means what their default means: "0" and 0, and all ways of leaving a field empty."""
    if default is ANY:
        return True
    if isinstance(value, str) and isinstance(default, (int, float)) and not isinstance(default, bool):
        try:
            value = float(value)
        except ValueError:
            return False
    if isinstance(value, bool) != isinstance(default, bool) and value not in BLANK:
        return False
    return value == default or (value in BLANK and default in BLANK)
