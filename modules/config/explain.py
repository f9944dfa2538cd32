"""Validation errors as sentences: the field, the value, what is allowed, and what was probably meant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from modules.config.names import known_names, nearest, nearest_path, owners
from modules.config.options import Option, find_option
from modules.config.section import NOT_A_NUMBER, RULES, Section
from modules.config.train_config import TrainConfig

SHOWN_LENGTH = 60
NAMES_SHOWN = 20


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: the path of the setting and the whole sentence."""

    path: str
    sentence: str


def explain(error: ValidationError, model: type[Section] = TrainConfig, prefix: str = "") -> list[str]:
    """One sentence per fault; `prefix` goes before the paths ("family_options" for a family's options)."""
    return [fault.sentence for fault in faults(error, model, prefix)]


def faults(error: ValidationError, model: type[Section] = TrainConfig, prefix: str = "") -> list[Fault]:
    """As `explain`, with the path of each fault, for a form that marks the field."""
    found: list[Fault] = []
    for detail in error.errors(include_url=False):
        for path, text in _Reader(model, detail, prefix).read():
            shown = _join(prefix, path)
            found.append(Fault(shown, f"{shown or 'The config'} {text}{'' if text.endswith('?') else '.'}"))
    return _without_consequences(list(dict.fromkeys(found)))


def allowed(option: Option) -> str:
    """What a setting accepts, in words: "a whole number from 8 to 8192"."""
    words = _KINDS[option.type]
    if option.type == "choice":
        words = f"one of {', '.join(option.choices)}"
    elif option.type == "text" and option.bounds.min_length:
        words = "text that is not empty"
    elif option.type in ("integers", "numbers"):
        words = words.format(option.length or "", option.bounds).replace("  ", " ")
    elif str(option.bounds):
        words = f"{words} {option.bounds}"
    return f"{words}, or empty (null)" if option.optional else words


def show(value: object) -> str:
    """The value as it would stand in a file, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, TypeError, RecursionError):
        text = f"a nested {type(value).__name__}"
    return text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 4] + " ..."


def listing(names: list[str]) -> str:
    """The names, or the first of many."""
    return ", ".join(names[:NAMES_SHOWN]) + (" and more, see docs/settings.md" if names[NAMES_SHOWN:] else "")


_KINDS = {
    "text": "text (in quotes, if it looks like a number)",
    "integer": "a whole number",
    "number": "a number",
    "switch": "true or false",
    "choice": "",
    "interval": 'an interval above 0 such as "200 steps", "1 epoch", "30 minutes" or "2 hours", or "never"',
    "integers": "a list of {} different whole numbers {}, such as [0, 1]",
    "numbers": "a list of {} numbers {}",
    "mapping": "a group of names with finite numbers, text, true or false, lists or groups as values",
    "list": "a list, each item of it a group of settings",
}


class _Reader:
    """One pydantic error read against the declarations."""

    def __init__(self, model: type[Section], detail: ErrorDetails, prefix: str) -> None:
        self.model = model
        self.prefix = prefix
        self.detail = detail
        self.kind = detail["type"]
        self.value: object = detail["input"]
        self.path, self.variant = _path(model, detail["loc"])
        self._find_the_place()

    def read(self) -> list[tuple[str, str]]:
        """Pairs of path and the rest of the sentence; more than one only for rules that span settings."""
        if self.kind == RULES:
            rules: list[tuple[str, str]] = _context(self.detail)["rules"]
            return [(_join(self.path, name), text) for name, text in rules]
        if self.kind in ("extra_forbidden", "invalid_key"):
            return [(self.path, self._unknown())]
        if self.kind.startswith("union_tag"):
            return [self._variant()]
        option = self._option()
        if self.kind == "missing":
            needs = allowed(option) if option else "a value"
            return [(self.path, f"is missing; it must be {needs}")]
        if option is None or not self.path:
            return [(self.path, f"is {show(self.value)}; it must be a group of named settings")]
        return [(self.path, f"is {show(self.value)}; {self._demand(option)}")]

    def _find_the_place(self) -> None:
        """A truth value in a list of numbers is told at its place, a number that is missing at the list."""
        place = _context(self.detail).get("place")
        if self.kind == NOT_A_NUMBER and isinstance(place, int) and isinstance(self.value, (list, tuple)):
            self.path, self.value = f"{self.path}.{place}", self.value[place]
        elif self.kind == "missing" and self.path.rpartition(".")[2].isdigit():
            self.path, self.kind = self.path.rpartition(".")[0], "too_short"

    def _option(self) -> Option | None:
        """The option at the path, or the one it is a part of, such as betas for betas.1."""
        path = self.path
        while path:
            option = find_option(self.model, path, self.variant)
            if option is not None and (path == self.path or option.type != "list"):
                return option
            path = path.rpartition(".")[0]
        return None

    def _demand(self, option: Option) -> str:
        if self.kind == "value_error" and option.type != "interval":
            return str(_context(self.detail).get("error", "it cannot be used"))
        meant = nearest(self.value, option.choices) if isinstance(self.value, str) else None
        is_element = option.type in ("integers", "numbers") and self.path != option.path
        must = _element(option) if is_element else allowed(option)
        return f"it must be {must}" + (f" (did you mean {meant}?)" if meant else "")

    def _unknown(self) -> str:
        text = f"({show(self.value)}) is not a known setting"
        having = owners(self.model, self.path)
        if having:
            return f"{text} of {self.variant}; only of {', '.join(having)}"
        meant = nearest_path(self.model, self.path, self.variant)
        if meant:
            return f"{text}; did you mean {_join(self.prefix, meant)}?"
        names = known_names(self.model, self.path, self.variant)
        return f"{text}; known here are {listing(names)}"

    def _variant(self) -> tuple[str, str]:
        path = f"{self.path}.name"
        name = self.value.get("name") if isinstance(self.value, Mapping) else self.value
        option = find_option(self.model, path)
        assert option is not None
        meant = nearest(name, option.choices) if isinstance(name, str) else None
        hint = f" (did you mean {meant}?)" if meant else ""
        return path, f"is {show(name)}; it must be {allowed(option)}{hint}"


def _join(group: str, name: str) -> str:
    return f"{group}.{name}" if group and name else group or name


def _context(detail: ErrorDetails) -> dict[str, Any]:
    return detail.get("ctx", {})


def _element(option: Option) -> str:
    return f"{'a whole number' if option.type == 'integers' else 'a number'} {option.bounds}".strip()


def _path(model: type[Section], loc: tuple[int | str, ...]) -> tuple[str, str | None]:
    """The dotted path of a pydantic location, without the name of the union's variant, and that name."""
    parts: list[str] = []
    variant = None
    for part in loc:
        group = find_option(model, ".".join(parts[:-1]))
        if group is not None and group.type == "mapping":
            break  # what follows the name are pydantic's own words for the kinds of free values
        tags = find_option(model, ".".join([*parts, "name"])) if parts else None
        if tags is not None and variant is None and tags.choices and part in tags.choices:
            variant = str(part)
        else:
            parts.append(str(part))
    return ".".join(parts), variant


def _without_consequences(found: list[Fault]) -> list[Fault]:
    """One cause, one fault: a misspelt `pth` leaves `path` missing, a wrong betas.1 makes betas too short."""
    text = " ".join(fault.sentence for fault in found)

    def follows(fault: Fault) -> bool:
        if " is missing;" in fault.sentence:
            return f"did you mean {fault.path}?" in text
        return any(other.path.startswith(f"{fault.path}.") for other in found if fault.path)

    return [fault for fault in found if not follows(fault)]
