"""Settings given on the command line: `--set learning_rate=1e-4`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

from modules.config.errors import ConfigError
from modules.config.explain import allowed, format_names, format_value
from modules.config.io.files import dump
from modules.config.io.text_formats import Data, read_yaml
from modules.config.keywords import keywords_text, parse_keywords
from modules.config.names import known_names, nearest_path, optimizers_with
from modules.config.options import Option, find_option
from modules.config.sections.optimizer import SCHEDULER, is_another_scheduler, with_scheduler_settings
from modules.config.sections.optimizers import in_full, with_name
from modules.config.train_config import TrainConfig

FREE_GROUP = "family_options"
_ARGUMENTS = ("optimizer.arguments", "scheduler_arguments")  # texts that stand for a group
_OPTIMIZER = ("optimizer", "optimizer.name", "optimizer.target")  # what chooses one, in the order of application


def override(data: Mapping[str, object], assignments: Iterable[str]) -> Data:
    """Apply each "path=value" to the data, completed with the defaults; raises ConfigError.

    Choosing another optimizer or scheduler drops the settings of the previous one; it is applied first, so that the
    order of the assignments does not matter.
    """
    result: Data = {**dump(TrainConfig()), **with_scheduler_settings(deepcopy(dict(data)))}
    result["optimizer"] = in_full(result["optimizer"])
    pairs = [_split(assignment) for assignment in assignments]
    if [path for path, _ in pairs if path in _OPTIMIZER] == ["optimizer.target"]:
        pairs.insert(0, ("optimizer", "custom"))
    scheduler = {path: text.strip() for path, text in pairs if path in SCHEDULER}
    if is_another_scheduler(result, scheduler):
        result |= {name: value for name, value in dump(TrainConfig()).items() if name in SCHEDULER}
        result["scheduler"] = with_scheduler_settings(scheduler)["scheduler"]
    for path, text in sorted(pairs, key=lambda pair: (*_OPTIMIZER, pair[0]).index(pair[0])):
        _assign(result, path, text)
    return result


def _split(assignment: str) -> tuple[str, str]:
    given, equals, text = assignment.partition("=")
    path = given.strip().removeprefix("--")
    if not equals or not path:
        raise ConfigError(f"{assignment!r} is not an assignment; write name=value, such as learning_rate=1e-4.")
    group, _, name = path.partition(".")
    is_in_group = group == "scheduler" and f"scheduler_{name.partition('.')[0]}" in SCHEDULER
    return f"scheduler_{name}" if is_in_group else path, text if given == given.rstrip() else text.strip()


def _assign(data: Data, path: str, given: str) -> None:
    text = given.strip()
    if path in _OPTIMIZER[:2]:
        data["optimizer"] = _optimizer(data["optimizer"], text)
        return
    group, _, name = path.rpartition(".")
    if group in _ARGUMENTS:
        _assign_argument(data, group, name, text)
        return
    option = _known_option(data, path)
    current = data["optimizer"]
    if path == "optimizer.target" and isinstance(current, dict) and current.get("target") != text:
        data["optimizer"] = {"name": current.get("name")}  # without the arguments of the former class
    *parents, last = path.split(".")
    container: object = data
    for depth, part in enumerate(parents):
        container = _enter(container, part, path=".".join(parents[: depth + 1]))
    value = _value(option, path, given if option is not None and option.type == "text" else text)
    if isinstance(container, list):
        container[_index(container, last, path)] = value
    elif isinstance(container, dict):
        container[last] = value
    else:
        raise ConfigError(f"{path} cannot be set: {'.'.join(parents)} is {format_value(container)}.")


def _assign_argument(data: Data, path: str, name: str, text: str) -> None:
    """Set one argument of a class."""
    _known_option(data, path)
    group = data["optimizer"] if path.startswith("optimizer.") else data
    key = path.rpartition(".")[2]
    if not isinstance(group, dict):
        raise ConfigError(f"{path} cannot be set: its group is {format_value(group)}.")
    given = group.get(key) or ""
    try:
        arguments = given if isinstance(given, dict) else parse_keywords(str(given))
    except ValueError as error:
        raise ConfigError(f"{path} is {given!r}, {error}.") from None
    group[key] = keywords_text({**arguments, name: _parse(path, text) if text else None})


def _optimizer(current: object, text: str) -> object:
    if text.startswith("{"):
        return in_full(_parse("optimizer", text))
    chosen = with_name(text)
    same = isinstance(current, dict) and isinstance(chosen, dict) and chosen.items() <= current.items()
    return current if same else chosen


def _known_option(data: Data, path: str) -> Option | None:
    """The option at the path; None for a list index and for names that only the family knows."""
    if path.startswith(f"{FREE_GROUP}."):
        return None
    optimizer = data["optimizer"]
    variant = str(optimizer.get("name")) if isinstance(optimizer, dict) else None
    option = find_option(TrainConfig, path, variant if path.startswith("optimizer.") else None)
    if path == "version":
        raise ConfigError("version belongs to the file format and cannot be set.")
    if option is not None or _is_list_index(path):
        return option
    raise ConfigError(_unknown(path, variant))


def _is_list_index(path: str) -> bool:
    parent, _, last = path.rpartition(".")
    option = find_option(TrainConfig, parent)
    return last.isdecimal() and option is not None and option.type in ("integers", "numbers", "list")


def _unknown(path: str, variant: str | None) -> str:
    known_to = optimizers_with(TrainConfig, path)
    if known_to:
        return f"{path} is not a setting of {variant}; only of {', '.join(known_to)}."
    meant = nearest_path(TrainConfig, path, variant)
    if meant:
        return f"{path} is not a known setting; did you mean {meant}?"
    names = known_names(TrainConfig, path, variant) or known_names(TrainConfig, "x")
    return f"{path} is not a known setting; known are {format_names(names)}."


def _enter(container: object, part: str, path: str) -> object:
    """The nested group or list item; a list grows by one item if the next index is given."""
    if isinstance(container, list):
        index = _index(container, part, path)
        return container[index]
    if isinstance(container, dict):
        if container.get(part) is None:
            container[part] = {}
        return container[part]
    raise ConfigError(f"{path} cannot be set, because its group is {format_value(container)}.")


def _index(container: list[object], part: str, path: str) -> int:
    if not part.isdecimal() or int(part) > len(container):
        raise ConfigError(f"{path}: the list has {len(container)} items; use a number from 0 to {len(container)}.")
    if int(part) == len(container):
        container.append({})
    return int(part)


def _value(option: Option | None, path: str, text: str) -> object:
    """Convert the text to the setting's type; invalid text is left to validation, which explains it."""
    if option is not None and option.optional and text.strip().lower() in ("", "null", "none", "~"):
        return None
    if option is None:
        return _parse(path, text) if text else ""
    if option.type in ("text", "choice", "interval"):
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
        return text[1:-1] if quoted else text
    if option.type in ("integers", "numbers") and not text.startswith("["):
        text = f"[{text}]"
    if not text:
        raise ConfigError(f"{path} has no value; it must be {allowed(option)}.")
    return _parse(path, text)


def _parse(path: str, text: str) -> object:
    try:
        return read_yaml(text)
    except ValueError:
        if text[0] in "[{":
            raise ConfigError(f"{path}={text} cannot be read: check the brackets and commas.") from None
        return text
