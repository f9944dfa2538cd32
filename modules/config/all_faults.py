"""All errors of a config at once: its rules are also checked while other settings are wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import ValidationError

from modules.config.errors import MOST_FAULTS
from modules.config.explain import Fault, faults
from modules.config.options import find_option
from modules.config.section import RULES
from modules.config.train_config import TrainConfig

_NAME = re.compile(r"[a-z][a-z0-9_]+")


def all_faults(data: Mapping[str, object]) -> list[Fault]:
    """The errors of the data; a broken rule that an invalid setting takes part in is not known and left out."""
    try:
        TrainConfig.model_validate(data)
    except ValidationError as error:
        found = faults(error)
        is_complete = _has_rules(error) or len(found) > MOST_FAULTS  # which are more than anybody reads
        return found if is_complete else [*found, *_broken_rules(data, found)]
    return []


def _broken_rules(data: Mapping[str, object], found: list[Fault]) -> list[Fault]:
    """The rules that the valid settings break: pydantic checks rules only where each setting is valid."""
    wrong = {fault.path for fault in found}
    rest = dict(data)
    for path in wrong:
        rest = _without(rest, path.split("."))
    try:
        TrainConfig.model_validate(rest)
    except ValidationError as error:
        heads = {path.partition(".")[0] for path in wrong}
        names = heads | {head.removesuffix("s") for head in heads}
        broken = faults(error) if _has_rules(error) else []
        return [fault for fault in broken if names.isdisjoint(_NAME.findall(f"{fault.path} {fault.sentence}"))]
    return []


def _has_rules(error: ValidationError) -> bool:
    """Whether it is that of the rules between the settings."""
    return any(detail["type"] == RULES and not detail["loc"] for detail in error.errors(include_url=False))


def _without(group: Mapping[str, object], path: list[str]) -> dict[str, object]:
    """A copy in which a setting has its default; of an item or a group that depends on it, all of that goes."""
    first, *rest = path
    inner = group.get(first)
    if rest and rest[-1] != "name" and isinstance(inner, Mapping):
        return {**group, first: _without(inner, rest)}
    if len(rest) > 1 and isinstance(inner, list) and rest[0].isdecimal() and int(rest[0]) < len(inner):
        item = inner[int(rest[0])]
        if isinstance(item, Mapping) and not _is_required(path):
            return {**group, first: [*inner[: int(rest[0])], _without(item, rest[1:]), *inner[int(rest[0]) + 1 :]]}
    return {name: value for name, value in group.items() if name != first}


def _is_required(path: list[str]) -> bool:
    option = find_option(TrainConfig, ".".join(path))
    return option is not None and option.required
