"""Old config files brought up to date, one version at a time."""

from __future__ import annotations

from collections.abc import Callable

from modules.config.errors import ConfigError
from modules.config.names import FORMER_NAMES
from modules.config.text_formats import Data
from modules.config.train_config import VERSION


def migrate(data: Data, where: str) -> Data:
    """A copy of the data in the current version; a file without a version is of version 0.

    Raises ConfigError for a version that is newer than this program or no version at all.
    """
    version = data.get("version", 0)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise ConfigError(f"{where}: version is {version!r}; it must be a whole number from 0 to {VERSION}.")
    if version > VERSION:
        raise ConfigError(
            f"{where}: version is {version}, but this Tandem knows versions up to {VERSION}.",
            "Update Tandem, or remove the line and check the settings.",
        )
    for step in range(version, VERSION):
        data = MIGRATIONS[step](data)
    return {**data, "version": VERSION}


def _name_in_full(data: Data) -> Data:
    """0 -> 1: `lr` and its like became whole words; where both stand, the old one is left to be reported."""
    return {FORMER_NAMES[name] if _was_renamed(name, data) else name: value for name, value in data.items()}


def _was_renamed(name: str, data: Data) -> bool:
    return name in FORMER_NAMES and FORMER_NAMES[name] not in data


MIGRATIONS: dict[int, Callable[[Data], Data]] = {0: _name_in_full}
