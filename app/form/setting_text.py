"""Formats values, help, errors and conditions of settings as text."""

from __future__ import annotations

from collections.abc import Iterable

from modules.config import Fault, Option, TrainConfig, allowed, find_option

ON_RESUME = {
    "free": "",
    "warn": "On resume: can be changed; the run warns you",
    "fixed": "On resume: must not change",
    "checked": "On resume: must be equivalent",
}


def format_value(value: object) -> str:
    """A value as typed into a field: 1e-5, or 0.9, 0.999 for a list."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(format_value(item) for item in value)
    return str(value)


def display_value(option: Option, value: object) -> str:
    """A value as the window displays it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, ""):
        return "empty"
    return f"{format_value(value)} {option.unit}" if option.unit and not isinstance(value, str) else format_value(value)


def help_text(option: Option) -> str:
    """The tooltip of a setting: help, default, allowed values, behaviour on resume, name in files."""
    lines = [option.help, ""]
    if not option.required:
        empty = option.default in (None, "", [], {})
        lines.append("Default: empty" if empty else f"Default: {display_value(option, option.default)}")
    if str(option.bounds) and option.type != "text":
        lines.append(f"Allowed: {allowed(option).removesuffix(' (null)')}")
    if option.resume != "free":
        lines.append(ON_RESUME[option.resume])
    lines.append(f"In files: {option.path.replace('.*', '')}")
    return "\n".join(lines)


def fault_message(fault: Fault, option: Option) -> str:
    """An error as shown at its field, where name and value are visible."""
    if fault.requirement:
        return f"Must be {fault.requirement.replace(', or empty (null)', ', or empty')}"
    rest = fault.sentence.removeprefix(fault.path).strip()
    return f"{option.title} {rest}"


def inactive_reason(option: Option, data: object, index: int = 0, more: Iterable[Option] = ()) -> str:
    """The first unmet condition of a setting that has no effect now, or "". `more` are the family's options."""
    from modules.config.options import _holds

    for term in (option.depends_on or "").replace("*", str(index)).split(" & "):
        if term and isinstance(data, dict) and not _holds(term, data):
            return _condition(term, more)
    return ""


def _condition(term: str, more: Iterable[Option]) -> str:
    path, _, values = term.removeprefix("!").partition("=")
    option = find_option(TrainConfig, path) or next((each for each in more if each.path == path), None)
    title = option.title if option else path
    if term.startswith("!"):
        return f"Not with “{title}”"
    if not values:
        return f"Only with “{title}”"
    return f"Only with “{title}” {' or '.join(values.split('|'))}"


def _number(value: float) -> str:
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    mantissa, e, exponent = repr(value).partition("e")
    if e:
        return f"{mantissa}e{int(exponent)}"
    if abs(value) < 0.001:
        mantissa, _, exponent = f"{value:e}".partition("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        return text if float(text) == value else repr(value)
    return mantissa
