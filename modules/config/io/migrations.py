"""Migration of older config files, one version at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from modules.config.errors import ConfigError
from modules.config.io.text_formats import Data
from modules.config.names import FORMER_NAMES
from modules.config.train_config import VERSION

# Nobody gives all of these by hand.
_WRITTEN_BY_TANDEM: Final = frozenset(
    {"version", "prefetch_factor", "max_nonfinite_steps", "scheduler_power", "find_unused_parameters", "backups_kept"}
)


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
    return {**_former_behaviour(data), **data, "version": VERSION}


def _former_behaviour(data: Data) -> Data:
    """The values of newer settings with which a file that Tandem wrote before them keeps its meaning.

    Such a file has all settings of its time, so that a run that resumes from it goes on as it began.
    """
    if not data.keys() >= _WRITTEN_BY_TANDEM or data.get("masked_training") is not True:
        return {}
    return {"normalize_masked_area_loss": True}  # 0.1 had no choice


def _expand_names(data: Data) -> Data:
    """0 -> 1: abbreviations such as `lr` became whole words; if both are present, the old one is kept and reported."""
    renamed = {old: new for old, new in FORMER_NAMES.items() if new not in data}
    return {renamed.get(name, name): value for name, value in data.items()}


MIGRATIONS: dict[int, Callable[[Data], Data]] = {0: _expand_names}
