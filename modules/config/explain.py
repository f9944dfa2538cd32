"""Validation errors as sentences: the field, the value, what is allowed, and what was probably meant."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from modules.config.errors import MOST_FAULTS
from modules.config.names import class_of_torch, known_names, nearest, nearest_path, optimizers_with
from modules.config.options import Option, find_option
from modules.config.section import NOT_A_NUMBER, RULES, Section
from modules.config.train_config import TrainConfig

SHOWN_LENGTH = 60
NAMES_SHOWN = 20


@dataclass(frozen=True)
class Fault:
    """One validation error: the path of the setting, the whole sentence, and what a valid value must be, if known."""

    path: str
    sentence: str
    requirement: str = ""


def explain(error: ValidationError, model: type[Section] = TrainConfig, prefix: str = "") -> list[str]:
    """One sentence per fault; `prefix` is put before the paths ("family_options" for a family's options)."""
    return [fault.sentence for fault in faults(error, model, prefix)]


def faults(error: ValidationError, model: type[Section] = TrainConfig, prefix: str = "") -> list[Fault]:
    """Like `explain`, but with the path of each fault, for a form that marks the field.

    Only the first ones are explained, which takes milliseconds each.
    """
    found: list[Fault] = []
    details = error.errors(include_url=False)
    for detail in details[:MOST_FAULTS]:
        for path, text, requirement in _ErrorReader(model, detail, prefix).read():
            shown = _join(prefix, path)
            sentence = f"{shown or 'The config'} {text}" + (f"; it must be {requirement}" if requirement else "")
            found.append(Fault(shown, f"{sentence}{'' if sentence.endswith('?') else '.'}", requirement))
    for detail in details[MOST_FAULTS:]:
        path = _join(prefix, ".".join(map(str, detail["loc"])))
        found.append(Fault(path, f"{path} cannot be used."))
    return _drop_follow_up_errors(list(dict.fromkeys(found)))


def allowed(option: Option) -> str:
    """Describe the values a setting accepts: "a whole number from 8 to 8192"."""
    words = _KINDS[option.type]
    if option.type == "choice":
        words = f"one of {', '.join(option.choices)}"
    elif option.type == "text" and option.bounds.min_length:
        words = "text that is not empty"
    elif option.type in ("integers", "numbers"):
        counts = option.bounds.ge == 1  # how many of something, of which two may be equal; others are indices
        words = _COUNTS if option.type == "integers" and counts else words
        words = words.format(option.length or "", option.bounds).replace("  ", " ")
    elif str(option.bounds):
        words = f"{words} {option.bounds}"
    return f"{words}, or empty (null)" if option.optional else words


def format_value(value: object) -> str:
    """The value as in a file, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, TypeError, RecursionError):
        text = f"a nested {type(value).__name__}"
    return text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 4] + " ..."


def format_names(names: list[str]) -> str:
    """The names separated by commas; only the first of many."""
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
    "mapping": "a group of names whose values are finite numbers, text, true or false, lists or groups",
    "list": "a list whose items are groups of settings",
}


_COUNTS = "a list of {} whole numbers {}, such as [4, 2]"

_MEANT = re.compile(r"did you mean ([\w.]+)\?")
_DOT = re.compile(r"\.")
_LONGEST_PATH = 1000  # characters; longer ones are no settings


class _ErrorReader:
    """Turns one pydantic error into sentences, using the declarations."""

    def __init__(self, model: type[Section], detail: ErrorDetails, prefix: str) -> None:
        self.model = model
        self.prefix = prefix
        self.detail = detail
        self.kind = detail["type"]
        self.value: object = detail["input"]
        self.path, self.variant = _path(model, detail["loc"])
        self._locate()

    def read(self) -> list[tuple[str, str, str]]:
        """Path, what is wrong and the requirement or ""; more than one only for rules that span settings."""
        if self.kind == RULES:
            rules: list[tuple[str, str]] = _context(self.detail)["rules"]
            return [(_join(self.path, name), text, "") for name, text in rules]
        if self.kind in ("extra_forbidden", "invalid_key"):
            return [(self.path, self._unknown(), "")]
        if self.kind.startswith("union_tag"):
            return [self._variant()]
        option = self._option()
        if self.kind == "missing":
            return [(self.path, "is missing", allowed(option) if option else "a value")]
        wrong = f"is {format_value(self.value)}"
        if option is None or not self.path:
            return [(self.path, wrong, "a group of named settings")]
        if self.kind == "value_error" and option.type != "interval":
            return [(self.path, f"{wrong}; {_context(self.detail).get('error', 'it cannot be used')}", "")]
        return [(self.path, wrong, self._requirement(option))]

    def _locate(self) -> None:
        """Report a bool in a list of numbers at its index, and a missing number at the list."""
        index = _context(self.detail).get("index")
        if self.kind == NOT_A_NUMBER and isinstance(index, int) and isinstance(self.value, (list, tuple)):
            self.path, self.value = f"{self.path}.{index}", self.value[index]
        elif self.kind == "missing" and self.path.rpartition(".")[2].isdigit():
            self.path, self.kind = self.path.rpartition(".")[0], "too_short"

    def _option(self) -> Option | None:
        """The option at the path, or the one it is an element of, such as betas for betas.1."""
        path = self.path
        while path:
            option = find_option(self.model, path, self.variant)
            if option is not None and (path == self.path or option.type != "list"):
                return option
            path = path.rpartition(".")[0]
        return None

    def _requirement(self, option: Option) -> str:
        meant = class_of_torch("torch.optim.lr_scheduler", self.value) if self.path == "scheduler" else None
        if self.path == "device" and str(self.value).lower().startswith(("gpu", "cuda")):
            meant = "auto"  # and not cpu, which is a letter away
        meant = meant or (nearest(self.value, option.choices) if isinstance(self.value, str) else None)
        is_element = option.type in ("integers", "numbers") and self.path != option.path
        return (_element(option) if is_element else allowed(option)) + (f" (did you mean {meant}?)" if meant else "")

    def _unknown(self) -> str:
        text = f"({format_value(self.value)}) is not a known setting"
        known_to = optimizers_with(self.model, self.path)
        if known_to:
            return f"{text} of {self.variant}; only of {', '.join(known_to)}"
        meant = nearest_path(self.model, self.path, self.variant)
        if meant:
            return f"{text}; did you mean {_join(self.prefix, meant)}?"
        names = known_names(self.model, self.path, self.variant)
        return f"{text}; known here are {format_names(names)}"

    def _variant(self) -> tuple[str, str, str]:
        path = f"{self.path}.name"
        name = self.value.get("name") if isinstance(self.value, Mapping) else self.value
        option = find_option(self.model, path)
        assert option is not None
        meant = class_of_torch("torch.optim", name) or (
            nearest(name, option.choices) if isinstance(name, str) else None
        )
        hint = f" (did you mean {meant}?)" if meant else ""
        return path, f"is {format_value(name)}", f"{allowed(option)}{hint}"


def _join(group: str, name: str) -> str:
    return f"{group}.{name}" if group and name else group or name


def _context(detail: ErrorDetails) -> dict[str, Any]:
    return detail.get("ctx", {})


def _element(option: Option) -> str:
    return f"{'a whole number' if option.type == 'integers' else 'a number'} {option.bounds}".strip()


def _path(model: type[Section], loc: tuple[int | str, ...]) -> tuple[str, str | None]:
    """The dotted path of a pydantic location without the union tag, and that tag."""
    parts: list[str] = []
    variant = None
    for part in loc:
        group = find_option(model, ".".join(parts[:-1]))
        if group is not None and group.type == "mapping":
            break  # what follows are pydantic's names for the types of JSON values
        tags = find_option(model, ".".join([*parts, "name"])) if parts else None
        if tags is not None and variant is None and tags.choices and part in tags.choices:
            variant = str(part)
        else:
            parts.append(str(part))
    return ".".join(parts), variant


def _drop_follow_up_errors(found: list[Fault]) -> list[Fault]:
    """Keep one fault per cause: a misspelt `pth` leaves `path` missing, a wrong betas.1 makes betas too short."""
    meant = {path for fault in found for path in _MEANT.findall(fault.sentence)}
    groups = {fault.path[: dot.start()] for fault in found for dot in _DOT.finditer(fault.path, 1, _LONGEST_PATH)}

    def follows(fault: Fault) -> bool:
        return fault.path in (meant if " is missing;" in fault.sentence else groups)

    return [fault for fault in found if not follows(fault)]
