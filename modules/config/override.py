"""Settings given on the command line: `--set learning_rate=1e-4`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

from modules.config.errors import ConfigError
from modules.config.explain import allowed, listing, show
from modules.config.files import dump
from modules.config.names import known_names, nearest_path, owners
from modules.config.options import Option, find_option
from modules.config.text_formats import Data, read_yaml
from modules.config.train_config import TrainConfig

FREE_GROUP = "family_options"


def override(data: Mapping[str, object], assignments: Iterable[str]) -> Data:
    """The data, completed with the defaults, with each "path=value" applied; raises ConfigError.

    Choosing another optimizer drops the settings of the former one; that happens first, so that the order of
    the assignments does not matter.
    """
    result: Data = {**dump(TrainConfig()), **deepcopy(dict(data))}
    if isinstance(result["optimizer"], str):
        result["optimizer"] = {"name": result["optimizer"]}
    pairs = [_split(assignment) for assignment in assignments]
    for path, text in sorted(pairs, key=lambda pair: not _chooses_optimizer(pair[0])):
        _assign(result, path, text)
    return result


def _split(assignment: str) -> tuple[str, str]:
    path, equals, text = assignment.partition("=")
    path = path.strip().removeprefix("--")
    if not equals or not path:
        raise ConfigError(f"{assignment!r} is no setting; write name=value, such as learning_rate=1e-4.")
    return path, text.strip()


def _chooses_optimizer(path: str) -> bool:
    return path in ("optimizer", "optimizer.name")


def _assign(data: Data, path: str, text: str) -> None:
    if _chooses_optimizer(path):
        data["optimizer"] = _optimizer(data["optimizer"], text)
        return
    option = _known_option(data, path)
    *parents, last = path.split(".")
    place: object = data
    for depth, part in enumerate(parents):
        place = _enter(place, part, path=".".join(parents[: depth + 1]))
    value = _value(option, path, text)
    if isinstance(place, list):
        place[_position(place, last, path)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ConfigError(f"{path} cannot be set: {'.'.join(parents)} is {show(place)}.")


def _optimizer(former: object, text: str) -> object:
    if text.startswith("{"):
        return _parse("optimizer", text)
    same = isinstance(former, dict) and former.get("name") == text
    return former if same else {"name": text}


def _known_option(data: Data, path: str) -> Option | None:
    """The option at the path; None for a place in a list and for names that only the family knows."""
    if path.startswith(f"{FREE_GROUP}."):
        return None
    optimizer = data["optimizer"]
    variant = str(optimizer.get("name")) if isinstance(optimizer, dict) else None
    option = find_option(TrainConfig, path, variant if path.startswith("optimizer.") else None)
    if path == "version":
        raise ConfigError("version belongs to the file format and cannot be set.")
    if option is not None or _is_place_in_list(path):
        return option
    raise ConfigError(_unknown(path, variant))


def _is_place_in_list(path: str) -> bool:
    parent, _, last = path.rpartition(".")
    option = find_option(TrainConfig, parent)
    return last.isdecimal() and option is not None and option.type in ("integers", "numbers", "list")


def _unknown(path: str, variant: str | None) -> str:
    having = owners(TrainConfig, path)
    if having:
        return f"{path} is not a setting of {variant}; only of {', '.join(having)}."
    meant = nearest_path(TrainConfig, path, variant)
    if meant:
        return f"{path} is not a known setting; did you mean {meant}?"
    names = known_names(TrainConfig, path, variant) or known_names(TrainConfig, "x")
    return f"{path} is not a known setting; known are {listing(names)}."


def _enter(place: object, part: str, path: str) -> object:
    """The group or list item inside; a list grows by one item when the next place is named."""
    if isinstance(place, list):
        position = _position(place, part, path)
        return place[position]
    if isinstance(place, dict):
        if place.get(part) is None:
            place[part] = {}
        return place[part]
    raise ConfigError(f"{path} cannot be set, because its group is {show(place)}.")


def _position(place: list[object], part: str, path: str) -> int:
    if not part.isdecimal() or int(part) > len(place):
        raise ConfigError(f"{path}: the list has {len(place)} items; use a number from 0 to {len(place)}.")
    if int(part) == len(place):
        place.append({})
    return int(part)


def _value(option: Option | None, path: str, text: str) -> object:
    """The text as the setting wants it; what does not fit is left to validation, which explains it."""
    if option is not None and option.optional and text.lower() in ("", "null", "none", "~"):
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
