"""Values and conditions of settings in words."""

from __future__ import annotations

from collections.abc import Iterable

from app import texts
from modules.config import Fault, Option, TrainConfig, allowed, find_option


def as_text(value: object) -> str:
    """A value as it is typed into a field: 1e-5, 0.9, 0.999."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(as_text(item) for item in value)
    return str(value)


def shown(option: Option, value: object) -> str:
    """A value as the window shows it."""
    if isinstance(value, bool):
        return texts.ON if value else texts.OFF
    if value in (None, ""):
        return texts.EMPTY
    return f"{as_text(value)} {option.unit}" if option.unit and not isinstance(value, str) else as_text(value)


def help_of(option: Option) -> str:
    """What the pointer brings up: the help, the default, what is allowed, the name in files."""
    lines = [option.help, ""]
    if not option.required:
        empty = option.default in (None, "", [], {})
        lines.append(texts.DEFAULT_EMPTY if empty else texts.DEFAULT.format(value=shown(option, option.default)))
    if str(option.bounds) and option.type != "text":
        lines.append(texts.ALLOWED.format(words=allowed(option).removesuffix(" (null)")))
    if option.resume != "free":
        lines.append(texts.ON_RESUME[option.resume])
    lines.append(texts.NAME_IN_FILES.format(name=option.path.replace(".*", "")))
    return "\n".join(lines)


def short(fault: Fault, option: Option) -> str:
    """A fault as it stands at its field, where name and value are in sight."""
    _, semicolon, demand = fault.sentence.partition("; ")
    if semicolon and demand.startswith("it must be "):
        words = demand.removeprefix("it must be ").removesuffix(".").replace(", or empty (null)", ", or empty")
        return texts.MUST.format(words=words)
    rest = fault.sentence.removeprefix(fault.path).strip()
    return f"{option.title} {rest}"


def reason(option: Option, data: object, index: int = 0, more: Iterable[Option] = ()) -> str:
    """Why a setting does nothing now: the first of its conditions that does not hold. `more`: the family's options."""
    from modules.config.options import _holds

    for term in (option.depends_on or "").replace("*", str(index)).split(" & "):
        if term and isinstance(data, dict) and not _holds(term, data):
            return _condition(term, more)
    return ""


def _condition(term: str, more: Iterable[Option]) -> str:
    path, _, wanted = term.removeprefix("!").partition("=")
    option = find_option(TrainConfig, path) or next((one for one in more if one.path == path), None)
    title = option.title if option else path
    if term.startswith("!"):
        return texts.NEEDS_NOT.format(title=title)
    if not wanted:
        return texts.NEEDS.format(title=title)
    return texts.NEEDS_VALUE.format(title=title, value=texts.NEEDS_OR.join(wanted.split("|")))


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
