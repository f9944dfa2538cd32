"""Paths in machine 0's config that exist on a joining machine: used only if a person there has allowed them.

Machine 0 may be anybody who has sent a join line. Without this, `base_model: ~/.ssh` would make the joining machine
read that folder and compare it.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from modules.config import ConfigError, DataError, Section, TrainConfig
from modules.files import FileFault, Record, printable, validate_record
from modules.files.addresses import is_address
from modules.files.private import read_private_json, why_ignored, write_private_json
from modules.files.user_folder import user_config_folder
from modules.machine import hostname

VARIABLE: Final = "TANDEM_ALLOW"  # folders and files, separated as in PATH
# Where a machine writes; it keeps its own, whatever machine 0's config says.
OWN_FOLDERS: Final = ("runs_dir", "cache_dir")
_OF_MACHINE_0: Final = ("rescue_dir",)  # no other machine saves models
_MOST_REMEMBERED: Final = 500
# Settings with several paths, by the last part of their names, and what is between these.
_SEVERAL: Final = {"references": ";", "reference": ";", "text_encoder_files": ","}

# All that machine 0 is told, so that it cannot find out what exists here.
FOR_MACHINE_0: Final = "a path of the config is missing there, or not allowed (its terminal says which)"

Ask = Callable[[str], bool]


class AllowedPath(Record):
    """One entry of allowed_paths.json."""

    path: str
    allowed: float = 0.0  # seconds since 1970


class PathNotAllowed(ConfigError):
    """A path of machine 0's config exists on this machine, and nobody here has allowed it."""


class PathMissing(DataError):
    """A folder or family file of machine 0's config does not exist on this machine."""


def check_paths(config: TrainConfig, own: Iterable[str], resume: str, allow: Sequence[str], ask: Ask | None) -> None:
    """Raise PathNotAllowed for a path from machine 0 that exists here and that nobody here has allowed, PathMissing for
    a folder of images or a family file that does not exist. Only then may anything at these paths be read.

    `own` are the names of the settings that this machine has chosen itself; `resume` is a backup to resume from;
    `allow` are folders and files given here; `ask` puts a question to a person.
    """
    named = [*paths_of_machine_0(config, own), ("resume", resume)]
    allowed = [Path(os.path.realpath(folder)) for folder in _allowed_folders(config, allow)]
    for name, value in named:
        found = _existing(value)
        if found is None:
            _require_file_or_folder(config, name, value)
        elif not any(found.is_relative_to(folder) for folder in allowed):
            if ask is None or not ask(f"{printable(name)}: {_both(value, found)}{why_ignored(_file())}"):
                raise _refusal(name, value, found)
            _remember(found)
            allowed.append(found)


def paths_of_machine_0(config: TrainConfig, own: Iterable[str]) -> list[tuple[str, str]]:
    """(name, value) of the paths that a joining machine, which has chosen `own` itself, takes from machine 0."""
    chosen = {*own, *OWN_FOLDERS, *_OF_MACHINE_0}
    named = [each for each in path_settings(config) if each[0] not in chosen]
    return [(name, path) for name, value in named for path in paths_in(name, value)]


def separator_of(name: str) -> str:
    """What is between the paths of a setting that takes several; empty for others."""
    return _SEVERAL.get(name.rpartition(".")[2], "")


def paths_in(name: str, value: str) -> list[str]:
    """The paths that a value of `path_settings` names, if it is one that takes several."""
    separator = separator_of(name)
    if not separator:
        return [value]
    parts = [part for each in value.split(separator) if (part := each.strip())]
    return [value, *parts] if name.startswith("family_options.") else parts


def asked_about(config: TrainConfig) -> dict[str, str]:
    """The settings' names by their paths that exist here, which another machine uses only if it is allowed there."""
    found = reversed(paths_of_machine_0(config, ()))
    return {value: name for name, value in found if _existing(value) is not None}


def allowing(line: str, paths: Iterable[str]) -> str:
    """The join line with which a machine may use these paths and does not ask."""
    return " ".join([line, *(f"--allow {shlex.quote(path)}" for path in paths)])


def path_settings(config: TrainConfig) -> list[tuple[str, str]]:
    """(name, value) of every setting declared as a file or folder, but addresses, of a family file, and of texts in
    family_options.

    What a family's options mean is known only to its file, so each of their texts counts that names something here.
    """
    is_file = config.family.endswith(".py") or Path(config.family).suffix == ".py"
    family = [("family", config.family)] if is_file else []
    return [*family, *_paths_of(config, ""), *texts_in(config.family_options, "family_options")]


def _paths_of(section: Section, prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in type(section).model_fields.items():
        value, extra = getattr(section, name), field.json_schema_extra
        is_path = isinstance(extra, dict) and extra.get("picks") in ("file", "folder")
        items = enumerate(value) if isinstance(value, (tuple, list)) else [(None, value)]
        for number, item in items:
            path = f"{prefix}{name}" if number is None else f"{prefix}{name}.{number}"
            if isinstance(item, Section):
                yield from _paths_of(item, f"{path}.")
            elif isinstance(item, str) and item and is_path and not is_address(item):
                yield path, item


def texts_in(value: object, path: str) -> Iterator[tuple[str, str]]:
    """(path, text) of each text in nested settings, whose own path is `path`."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from texts_in(item, f"{path}.{name}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from texts_in(item, f"{path}.{number}")


def _allowed_folders(config: TrainConfig, allow: Sequence[str]) -> Iterator[str]:
    yield from (str(getattr(config, name)) for name in OWN_FOLDERS)
    yield from (os.path.expanduser(folder) for folder in allow)
    yield from (os.path.expanduser(each) for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each)
    yield from (each.path for each in _remembered())
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    yield os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")


def _existing(value: str) -> Path | None:
    """The real path that a value names on this machine; None if there is nothing, as for a hub name."""
    if not value or "\0" in value:
        return None
    # as a Path, without a slash after a file's name: whoever opens the value may leave it out, too
    found = next((each for each in (Path(value), Path(os.path.expanduser(value))) if os.path.lexists(each)), None)
    return None if found is None else Path(os.path.realpath(found))


def _require_file_or_folder(config: TrainConfig, name: str, value: str) -> None:
    """Raise PathMissing if the missing path is that of images in use or of the family; a model may be a hub name."""
    if name == "family":
        raise PathMissing(
            f"family: there is no file {value!r} on {hostname()}",
            "Copy the family's file from machine 0; if it is in another place here, use --set family=FILE",
        )
    group, _, rest = name.partition(".")
    if group == "concepts" and config.concepts[int(rest.partition(".")[0])].enabled:
        raise PathMissing(
            f"concepts: there is no folder {value!r} on {hostname()}",
            f"Copy the images from machine 0; if they are in another place here, join with --set {name}=FOLDER",
        )


def _refusal(name: str, value: str, found: Path) -> PathNotAllowed:
    shown, name = _shown(value), printable(name)
    where = "" if _shown(found) == value else f" (here {_shown(found)})"
    return PathNotAllowed(
        f"{name}: machine 0's config names {printable(value)!r}{where}, which nobody has allowed on this machine"
        f"{why_ignored(_file())}",
        f"If the run may read it, join with --allow {shown} (or {VARIABLE}={shown}); or use your own with "
        f"--set {name}=PATH",
    )


def _both(value: str, found: Path) -> str:
    """What machine 0's config says, and where that leads on this machine, which is what its user decides about."""
    written, real = _shown(value), _shown(found)
    return written if written == real else f"{written}, which is {real} here"


def _shown(path: Path | str) -> str:
    """The whole path as a person decides about it: what looks like a password belongs to it."""
    return printable(path, 5000, mask=False)


def _remember(path: Path) -> None:
    entries = [each for each in _remembered() if each.path != str(path)]
    entries.append(AllowedPath(path=str(path), allowed=time.time()))
    with suppress(OSError):  # a home that cannot be written: the answer holds for this start
        write_private_json(_file(), [each.model_dump() for each in entries[-_MOST_REMEMBERED:]])


def _remembered() -> list[AllowedPath]:
    try:
        return validate_record(list[AllowedPath], read_private_json(_file()))
    except (OSError, FileFault):
        return []


def _file() -> Path:
    return user_config_folder() / "allowed_paths.json"
