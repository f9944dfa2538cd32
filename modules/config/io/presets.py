"""Presets: the configs that ship with Tandem, and the user's own in the subfolder `mine`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from modules import ROOT
from modules.config.errors import ConfigError
from modules.config.file_access import require_own
from modules.config.io.files import READERS, config_files, load_config, parse, read_data, save_config, validate
from modules.config.io.migrations import TITLE
from modules.config.io.override import override
from modules.config.io.text_formats import Data
from modules.config.names import nearest
from modules.config.sections.submodule import QUANTISED
from modules.config.train_config import TrainConfig
from modules.files import FileFault, read_text

PRESETS = ROOT / "presets"
OWN = "mine"


@dataclass(frozen=True)
class PresetSummary:
    """For a list of presets: what the head of its file says, its model family, method and base model; empty if unknown.

    The title is that of the file, empty if it names none. `quantised` is the format, such as int8, in which it keeps
    the frozen weights; empty if in a dtype.
    """

    name: str
    title: str
    about: str
    family: str
    method: str
    base_model: str
    quantised: str

    @property
    def memory_gb(self) -> int:
        """The memory of the one GPU that it is made for, from its title; 0 if that does not say."""
        match = _MEMORY.search(self.title)
        return int(match[1]) if match else 0


_MEMORY = re.compile(r", (\d{1,4}) GB$")
_NAME = re.compile(r"[\w][\w .-]{0,99}")


def resolve_config(source: str | None = None, overrides: Iterable[str] = (), presets: Path = PRESETS) -> TrainConfig:
    """The config of a file or preset (None: the defaults) with the overrides applied; raises ConfigError.

    A Python file is a config that says only that it is the family.
    """
    assignments = list(overrides)
    data = _read_source(source, presets)
    return validate(override(data, assignments) if assignments else data, source or "The settings", assignments)


def composition(source: str, presets: Path = PRESETS) -> list[Path]:
    """The files that a config or preset is made of; none for a Python file. Raises ConfigError."""
    if Path(source).suffix == ".py":
        return []
    is_file = Path(source).suffix.lower() in READERS or os.path.exists(source)
    return config_files(source if is_file else _file(source, presets))


def preset_names(folder: Path = PRESETS) -> list[str]:
    """The names of all presets; the user's own come last, as "mine/NAME"."""
    own = [f"{OWN}/{name}" for name in sorted(_files(folder / OWN))]
    return [*sorted(_files(folder)), *own]


def load_preset(name: str, folder: Path = PRESETS) -> TrainConfig:
    """Load a preset; raises ConfigError that lists the names if it does not exist."""
    return load_config(_file(name, folder))


def preset_data(name: str, folder: Path = PRESETS) -> Data:
    """The settings in a preset, before defaults and validation."""
    return read_data(_file(name, folder))


def preset_summary(name: str, folder: Path = PRESETS) -> PresetSummary:
    """What a list of presets shows of one; the comment at the head of its file says what it is for."""
    try:
        file = _file(name, folder)
        text, data = read_text(file), read_data(file)
        title = parse(file, text).get(TITLE)
    except (OSError, FileFault, ConfigError):
        return PresetSummary(name, "", "", "", "", "", "")
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    about = " ".join(line.removeprefix("#").strip() for line in head)
    default, title = TrainConfig(), title if isinstance(title, str) else ""
    family, method = data.get("family", default.family), data.get("method", default.method)
    base_model, quantised = str(data.get("base_model") or ""), _quantised(data)
    return PresetSummary(name, title, about, str(family), str(method), base_model, quantised)


def _quantised(data: Data) -> str:
    parts = data.get("parts")
    formats = [part.get("weights") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return next((str(each) for each in formats if each in QUANTISED), "")


def save_preset(config: TrainConfig, name: str, folder: Path = PRESETS) -> Path:
    """Save a config as one of the user's own presets, replacing one of the same name; returns its file."""
    plain = _own_name(name, folder)
    own = folder / OWN
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{own} cannot be created: {error.strerror}.") from error
    save_config(config, own / f"{plain}.yaml")
    return own / f"{plain}.yaml"


def own_preset_file(name: str, folder: Path = PRESETS) -> Path:
    """The file of one of the user's own presets, "mine/NAME". Raises ConfigError if there is none of this user."""
    return _file(f"{OWN}/{name.removeprefix(f'{OWN}/')}", folder)


def rename_preset(name: str, new: str, folder: Path = PRESETS) -> str:
    """Give one of the user's own presets another name; returns it, as "mine/NAME". Raises ConfigError."""
    file, plain = own_preset_file(name, folder), _own_name(new, folder)
    if plain != file.stem:
        if plain in _files(file.parent):
            raise ConfigError(f"Your preset {plain!r} already exists.")
        try:
            file.rename(file.with_name(f"{plain}{file.suffix}"))
        except OSError as error:
            raise ConfigError(f"{file} cannot be renamed: {error.strerror}.") from error
    return f"{OWN}/{plain}"


def _own_name(name: str, folder: Path) -> str:
    """The name of a preset of the user without the group. Raises ConfigError if none may be named so."""
    plain = name.removeprefix(f"{OWN}/").strip()
    if not _NAME.fullmatch(plain):
        nearest_name = re.sub(r"[^\w .-]+", "_", plain)[:100].strip(" .-")
        advice = f"Try {nearest_name}." if _NAME.fullmatch(nearest_name) else ""
        raise ConfigError(f"A preset cannot be named {name!r}; use letters, digits, spaces, dots and dashes", advice)
    if plain.lower() in map(str.lower, _files(folder)):
        raise ConfigError(f"The preset {plain!r} comes with Tandem; choose another name for yours.")
    return plain


def _read_source(source: str | None, presets: Path) -> Data:
    if source is None:
        return {}
    if not source.strip():
        raise ConfigError("The config has no name; give a file or a preset.")
    path = Path(source)
    if path.suffix == ".py":
        return {"family": source}
    is_file_name = path.suffix.lower() in READERS or path.is_absolute()
    return read_data(path) if is_file_name or os.path.exists(path) else preset_data(source, presets)


def _files(folder: Path) -> dict[str, Path]:
    """By their names; none in a folder that does not exist or cannot be read."""
    try:
        files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in READERS and file.is_file()]
    except OSError:
        return {}
    return {file.stem: file for file in files if not file.name.startswith(".")}


def _file(name: str, folder: Path) -> Path:
    group, _, plain = name.rpartition("/")
    found = _files(folder / group).get(plain) if group in ("", OWN) else None
    if found is not None:
        require_own(found, "To use it, copy it and remove the other, or give its path as a config file")
        return found
    names = preset_names(folder)
    meant = nearest(name, names)
    hint = f" Did you mean {meant}?" if meant else ""
    raise ConfigError(
        f"There is no preset or config file {name!r}.{hint}",
        f"Presets: {', '.join(names) or 'none'}; a config file ends in .json, .yaml or .yml.",
    )
