"""Configs of several files: `include: base.yaml`, or a list `defaults:` as Hydra has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

from modules.config.errors import ConfigError
from modules.config.explain import format_value
from modules.config.io.text_formats import Data
from modules.config.sections.optimizer import SCHEDULER, is_another_scheduler
from modules.config.sections.optimizers import AdamW, with_name
from modules.files import printable

INCLUDE, DEFAULTS = "include", "defaults"
_SELF: Final = "_self_"  # in `defaults`: where the file's own settings come
_GROUPS: Final = ("optimizer", "family_options")  # settings with settings inside, which a folder may have files for
_MOST_FILES: Final = 100
_LONGEST: Final = 200  # bytes of a name, to which an ending is added
_SUFFIXES: Final = (".yaml", ".yml", ".json")


class _Part(NamedTuple):
    name: str  # of a file, or _self_
    group: str = ""  # the setting that its content is
    setting: str = DEFAULTS  # that names it


def compose(file: Path, read: Callable[[Path], Data]) -> Data:
    """The settings of a file on top of those of the files that it names, in their order; `read` gives those of one.

    Paths are relative to the file that names them, and end in the folder of `file` or below. Groups are merged, lists
    replaced, and another optimizer or scheduler takes no settings of the former. Raises ConfigError for a circle or a
    wrong name.
    """
    return _composed(file, read, None, (), [])


def _composed(
    file: Path, read: Callable[[Path], Data], root: Path | None, above: tuple[Path, ...], counted: list[Path]
) -> Data:
    counted.append(file)
    if len(counted) > _MOST_FILES:
        raise ConfigError(
            f"{printable(counted[0])} is made of more than {_MOST_FILES} files", "Put some of them together"
        )
    data = read(file)
    own = {name: value for name, value in data.items() if name not in (INCLUDE, DEFAULTS)}
    if len(own) == len(data):
        return data
    place = Path(os.path.realpath(file))
    if place in above:
        circle = " -> ".join(each.name for each in (*above[above.index(place) :], place))
        raise ConfigError(f"{printable(file)} includes itself: {circle}", "Take one of these lines away")
    root = root or Path(os.path.realpath(file.parent))
    found: Data = {}
    for part in _parts(file, data):
        if part.name == _SELF:
            found = _merged(found, own)
            continue
        inner = _composed(_located(file, part, root), read, root, (*above, place), counted)
        if part.group:
            inner = {part.group: {name: value for name, value in inner.items() if name != "version"}}
        found = _merged(found, inner)
    return found


def _parts(file: Path, data: Mapping[str, object]) -> Iterator[_Part]:
    """In the order in which each takes precedence over those before it."""
    included = data.get(INCLUDE, [])
    for name in included if isinstance(included, list) else [included]:
        if not _is_name(name):
            raise _wrong(file, INCLUDE, name)
        yield _Part(name, setting=INCLUDE)
    entries = data.get(DEFAULTS, [])
    if not isinstance(entries, list) or entries.count(_SELF) > 1:
        raise _wrong(file, DEFAULTS, entries)
    for entry in [*entries, *([] if _SELF in entries else [_SELF])]:
        if _is_name(entry):
            yield _Part(entry)
        elif isinstance(entry, dict) and len(entry) == 1:
            [(group, names)] = entry.items()
            for name in names if isinstance(names, list) else [] if names is None else [names]:
                if not (_is_name(group) and _is_name(name)) or " " in group:  # such as `override hydra/launcher`
                    raise _wrong(file, DEFAULTS, entry)
                yield _Part(f"{group}/{name}", group if group in _GROUPS else "")
        else:
            raise _wrong(file, DEFAULTS, entry)


def _is_name(value: object) -> TypeGuard[str]:
    """Whether it is a text that a file can have as its name."""
    return isinstance(value, str) and bool(value) and value.isprintable() and len(value.encode()) <= _LONGEST


def _wrong(file: Path, setting: str, value: object) -> ConfigError:
    example = "base.yaml" if setting == INCLUDE else "[base, optimizer: lion, _self_]"
    return ConfigError(
        f"{printable(file)}: {setting} has {format_value(value)}, which names no file",
        f"Give files beside it, such as {setting}: {example}",
    )


def _located(file: Path, part: _Part, root: Path) -> Path:
    """The file that a part means, with one of the endings of configs if it is written without."""
    outside = ConfigError(
        f"{printable(file)}: {part.setting} names {part.name!r}, which is not in {printable(root)}",
        "Give a file in the folder of the config or below it",
    )
    if Path(part.name).is_absolute() or part.name[0] in "/\\":
        raise outside  # before it is looked for, which on Windows asks another computer for //its/files
    path = file.parent / part.name
    names = [path] if path.suffix.lower() in _SUFFIXES else [Path(f"{path}{suffix}") for suffix in _SUFFIXES]
    found = next((each for each in names if each.is_file()), names[0])
    if not Path(os.path.realpath(found)).is_relative_to(root):
        raise outside
    if not found.is_file():
        raise ConfigError(
            f"{printable(file)}: {part.setting} names {part.name!r}, and there is no file {printable(found)}",
            "Correct the name; it is relative to this file",
        )
    return found


def _merged(below: Data, above: Mapping[str, object]) -> Data:
    found = dict(below)
    if is_another_scheduler(below, above):
        found = {name: value for name, value in below.items() if name not in SCHEDULER}
    for name, given in above.items():
        value = with_name(given) if name == "optimizer" else given
        former = found.get(name)
        is_same = isinstance(value, dict) and isinstance(former, dict) and _is_same_kind(former, value)
        found[name] = _merged(former, value) if is_same else value  # type: ignore[arg-type]
    return found


def _is_same_kind(former: Mapping[str, object], value: Mapping[str, object]) -> bool:
    """Whether settings go together: those of another optimizer or class do not. Without a name it is adamw."""
    name, target = former.get("name", AdamW().name), former.get("target")
    return value.get("name", name) == name and value.get("target", target) == target
