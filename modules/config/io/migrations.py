"""Migration of older config files, one version at a time."""

from __future__ import annotations

from collections.abc import Callable

from modules.config.errors import ConfigError
from modules.config.io.text_formats import Data
from modules.config.names import FORMER_NAMES
from modules.config.train_config import VERSION


def migrate(data: Data, source: str) -> Data:
    """A copy of the data in the current version; a file without a version has version 0.

    Raises ConfigError if the version is invalid or newer than this program.
    """
    version = data.get("version", 0)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise ConfigError(f"{source}: version is {version!r}; it must be a whole number from 0 to {VERSION}.")
    if version > VERSION:
        raise ConfigError(
            f"{source}: version is {version}, but this Tandem supports versions up to {VERSION}.",
            "Update Tandem, or remove the line and check the settings.",
        )
    for step in range(version, VERSION):
        data = MIGRATIONS[step](data)
    return {**data, "version": VERSION}


def _expand_names(data: Data) -> Data:
    """0 -> 1: abbreviations such as `lr` became whole words; if both are present, the old one is kept and reported."""
    renamed = {old: new for old, new in FORMER_NAMES.items() if new not in data}
    return {renamed.get(name, name): value for name, value in data.items()}


MIGRATIONS: dict[int, Callable[[Data], Data]] = {0: _expand_names}
