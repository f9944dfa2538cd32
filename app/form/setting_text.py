"""Formats values, help, errors and conditions of settings as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from modules.config import Fault, Option, TrainConfig, allowed, find_option
from modules.config.family_about import family_about
from modules.config.numbers import format_number, plain_number
from modules.config.options import unmet
from modules.facts import family_names

ON_RESUME = {
    "free": "",
    "warn": "On resume: can be changed; the run warns you",
    "fixed": "On resume: must not change",
    "checked": "On resume: must be equivalent",
}


_NAME = re.compile(r"(?<![\w'\"/\\.-])[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*(?![\w'\"/\\-])")  # not inside quotes or a path
_ANY_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")
_ONE = {"processes": "process", "batches": "batch"}
_MEANT = re.compile(r"did you mean (\w+)\?")
_FLAG = re.compile(r"(?<![\w'\"/-])--([a-z][a-z0-9_]*)\b")
_SET_FLAG = re.compile(r" \(--set [^()]*\)")  # says for the command line what stands before it
_IN_WINDOW = {
    "then --resume latest": "then press Resume",
    "--resume latest": "Resume",
    "as scripts/sample.py --lora": "under Generate",
    ": scripts/convert.py BASE OUT --merge LORA": " under Tools, Model files",
}


def format_value(value: object) -> str:
    """A value as typed into a field: 1e-5, or 0.9, 0.999 for a list."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return plain_number(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(format_value(item) for item in value)
    return str(value)


def display_value(option: Option, value: object) -> str:
    """A value as the window displays it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, ""):
        return "empty"
    if isinstance(value, str):
        return option.titles.get(value, value)
    if option.unit is None or not isinstance(value, (int, float)):
        return format_value(value)
    unit = _ONE.get(option.unit, option.unit.removesuffix("s")) if value == 1 else option.unit
    return f"{format_number(value)} {unit}"  # what has no unit may be a name, such as a port or a seed


def choice_title(path: str, choice: str) -> str:
    """A choice of a setting in the words of its menu: "Fine-tune"."""
    option = find_option(TrainConfig, path)
    return choice if option is None else option.titles.get(choice, choice)


def choice_details(option: Option) -> dict[str, str]:
    """What the help says about each choice ("linear: falls evenly."), as one sentence; empty if one is left out."""
    details = {}
    for choice, said in _explained(option)[1]:
        sentence = re.split(r"(?<=[^.]{3}\.)\s|;", said)[0].strip().rstrip(".")
        details[choice] = f"{sentence[:1].upper()}{sentence[1:]}."
    return details


def _explained(option: Option) -> tuple[str, list[tuple[str, str]]]:
    """The help in front of the choices, and what it says about each; all of it and nothing if one is left out."""
    found = {choice: f" {option.help}".find(f" {choice}: ") for choice in option.choices}
    if not found or min(found.values()) < 0:
        return option.help, []
    starts = sorted((start, choice) for choice, start in found.items())
    ends = [*(start for start, _ in starts), len(option.help)][1:]
    said = [
        (choice, option.help[start + len(choice) + 2 : end].strip())
        for (start, choice), end in zip(starts, ends, strict=True)
    ]
    return option.help[: starts[0][0]].strip(), said


def help_text(option: Option) -> str:
    """The tooltip of a setting: help, default, allowed values, behaviour on resume, name in files."""
    about, choices = _explained(option)
    titles = option.titles
    lines = [about, *(f"{titles[choice]}: {said}" for choice, said in choices), ""]
    lines = [_with_choices(option, line) for line in lines]
    if not option.required:
        empty = option.default in (None, "", [], {})
        lines.append("Default: empty" if empty else f"Default: {display_value(option, option.default)}")
    if option.choices:
        written = [f"{title} = {choice}" for choice, title in titles.items() if title.lower() != choice]
        lines += [f"Written in files: {', '.join(written)}"] if written else []
    if str(option.bounds) and option.type != "text":
        lines.append(f"Allowed: {allowed(option).removesuffix(' (null)')}")
    if option.resume != "free":
        lines.append(ON_RESUME[option.resume])
    lines.append(f"In files: {option.path.replace('.*', '')}")
    return "\n".join(lines)


def _needed_choices(option: Option) -> dict[str, str]:
    """The words for the choices of other settings on which a setting depends."""
    found: dict[str, str] = {}
    for term in (option.depends_on or "").split(" & "):
        path, _, values = term.partition("=")
        needed = find_option(TrainConfig, path)
        if needed is not None:
            found |= {name: title for name, title in needed.titles.items() if name in values.split("|")}
    return found


def _with_choices(option: Option, said: str) -> str:
    """A sentence of the help with the words of the menu in place of the choices' names.

    A name that may be an ordinary word counts only before a colon, or if the setting depends on it.
    """
    titles = {**_needed_choices(option), **option.titles}

    def title(match: re.Match[str]) -> str:
        name, colon = match.group(1), match.group(2)
        is_word = name in option.choices and not (colon or "_" in name)
        return match.group() if is_word else f"{titles.get(name, name)}{colon}"

    return re.sub(r"(?<![\w.=-])([a-z][a-z0-9_]*)(:?)(?![\w=-])", title, said)


def fault_message(fault: Fault, option: Option) -> str:
    """An error as shown at its field, where name and value are visible."""
    if option.type == "interval":
        return "Must be a number above 0, with a unit"
    if option.choices and fault.requirement:
        meant = _MEANT.search(fault.requirement)
        return "Choose one from the list" + (f": did you mean {option.titles[meant[1]]}?" if meant else "")
    if fault.requirement:
        return f"Must be {fault.requirement.replace(', or empty (null)', ', or empty')}"
    rest = fault.sentence.removeprefix(fault.path).strip()
    return f"{option.title} {rest}"


def with_titles(sentence: str, more: Iterable[Option] = ()) -> str:
    """A sentence about settings with their titles in place of their names; `more` are the family's options.

    A name of one word, which may be an ordinary word, counts only where the sentence begins with it. What sets one
    of a list, such as concepts.0.path=/data, is to be typed as it is.
    """
    titles = {option.path: option.title for option in more}
    sentence = with_actions(sentence, titles)

    def title(match: re.Match[str]) -> str:
        name = match.group()
        if "_" in name and name in family_names():
            return family_about(name).title
        option = find_option(TrainConfig, name)
        found = titles.get(name, "" if option is None else option.title)
        if not found or not ("_" in name or "." in name or match.start() == 0):
            return name
        places = [int(part) + 1 for part in name.split(".") if part.isdecimal()]
        if places and match.string[match.end() :].startswith("="):
            return name
        return f"“{found}”" + (f" of {name.partition('.')[0].removesuffix('s')} {places[0]}" if places else "")

    return _NAME.sub(title, sentence).replace(", or empty (null)", ", or empty")


def with_actions(sentence: str, titles: Mapping[str, str] | None = None) -> str:
    """A sentence written for the command line, with the window's buttons and fields in place of its flags.

    `titles` are those of the fields by the names of their flags; the settings' are known.
    """
    for flag, words in _IN_WINDOW.items():
        sentence = sentence.replace(flag, words)
    sentence = sentence.replace("`", "")

    def title(match: re.Match[str]) -> str:
        name = match.group(1)
        option = find_option(TrainConfig, name)
        found = (titles or {}).get(name, "" if option is None else option.title)
        return f"“{found}”" if found else match.group()

    return _FLAG.sub(title, _SET_FLAG.sub("", sentence))


def setting_named(message: str) -> str:
    """The path of the first setting that a message names, such as "concepts.0.path"; empty if it names none.

    A name of one word, which may be an ordinary word, counts only where the message begins with it.
    """
    for match in _ANY_NAME.finditer(message):
        name = match.group()
        is_certain = "_" in name or "." in name or match.start() == 0
        if is_certain and find_option(TrainConfig, name) is not None:
            return name
    return ""


def setting_title(path: str) -> str:
    """The title of a setting: "Learning rate", or of one in a list "Folder, concept 1"; the path if it has none."""
    option = find_option(TrainConfig, path)
    if option is None:
        return path
    group, *parts = path.split(".")
    places = [int(part) + 1 for part in parts if part.isdecimal()]
    return f"{option.title}, {group.removesuffix('s')} {places[0]}" if places else option.title


def inactive_reason(option: Option, data: object, index: int = 0, more: Iterable[Option] = ()) -> str:
    """The first unmet condition of a setting that has no effect now, or "". `more` are the family's options."""
    term = unmet(option, data, index) if isinstance(data, dict) else ""
    return _condition(term, more) if term else ""


def _condition(term: str, more: Iterable[Option]) -> str:
    path, _, values = term.removeprefix("!").partition("=")
    option = find_option(TrainConfig, path) or next((each for each in more if each.path == path), None)
    title = option.title if option else path
    is_switch = option is not None and option.type == "switch"
    if option is not None and option.type == "list":
        return f"Add a {title.lower().removesuffix('s')} first."
    if values:
        titles = option.titles if option is not None else {}
        *others, last = [titles.get(value, value) for value in values.split("|")]
        needed = f"{', '.join(others)} or {last}" if others else last
    elif term.startswith("!"):
        needed = "off" if is_switch else "not set"
    else:
        needed = "on" if is_switch else "set"
    return f"Used only if “{title}” is {needed}."
