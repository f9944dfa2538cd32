"""Ready configs by name: those that come with Tandem, and the user's own in the folder `mine` beside them."""

from __future__ import annotations

import re
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.files import READERS, load_config, read_data, save_config
from modules.config.names import nearest
from modules.config.text_formats import Data
from modules.config.train_config import TrainConfig

PRESETS = Path(__file__).resolve().parents[2] / "presets"
OWN = "mine"

_NAME = re.compile(r"[\w][\w .-]{0,99}")


def preset_names(folder: Path = PRESETS) -> list[str]:
    """The names of all presets, the user's own last and written "mine/NAME"."""
    own = [f"{OWN}/{name}" for name in _names(folder / OWN)]
    return [*_names(folder), *own]


def load_preset(name: str, folder: Path = PRESETS) -> TrainConfig:
    """The config of a preset; raises ConfigError that lists the names if there is none of this name."""
    return load_config(_file(name, folder))


def preset_data(name: str, folder: Path = PRESETS) -> Data:
    """What a preset says, before defaults and validation."""
    return read_data(_file(name, folder))


def save_preset(config: TrainConfig, name: str, folder: Path = PRESETS) -> Path:
    """Keep a config as one of the user's own presets, in place of one of the same name; returns its file."""
    plain = name.removeprefix(f"{OWN}/").strip()
    if not _NAME.fullmatch(plain):
        raise ConfigError(f"A preset cannot be named {name!r}; use letters, digits, spaces, dots and dashes.")
    own = folder / OWN
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{own} cannot be created: {error.strerror}.") from error
    save_config(config, own / f"{plain}.yaml")
    return own / f"{plain}.yaml"


def _names(folder: Path) -> list[str]:
    return sorted(_files(folder))


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    files = (file for file in sorted(folder.iterdir()) if file.suffix.lower() in READERS and file.is_file())
    return {file.stem: file for file in files if not file.name.startswith(".")}


def _file(name: str, folder: Path) -> Path:
    group, _, plain = name.rpartition("/")
    found = _files(folder / group).get(plain) if group in ("", OWN) else None
    if found is not None:
        return found
    names = preset_names(folder)
    meant = nearest(name, names)
    hint = f" Did you mean {meant}?" if meant else ""
    raise ConfigError(
        f"There is no preset or config file {name!r}.{hint}",
        f"Presets: {', '.join(names) or 'none'}; a config file ends in .json, .yaml or .yml.",
    )
