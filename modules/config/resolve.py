"""From what stands on a command line to a config."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.files import READERS, read_data, validate
from modules.config.override import override
from modules.config.presets import PRESETS, preset_data
from modules.config.text_formats import Data
from modules.config.train_config import TrainConfig


def resolve_config(source: str | None = None, overrides: Iterable[str] = (), presets: Path = PRESETS) -> TrainConfig:
    """The config of a file or preset (None: the defaults) with the overrides applied; raises ConfigError."""
    assignments = list(overrides)
    data = _data(source, presets)
    where = source or "The settings"
    if not assignments:
        return validate(data, where)
    return validate(override(data, assignments), f"{where} with {' '.join(assignments)}")


def _data(source: str | None, presets: Path) -> Data:
    if source is None:
        return {}
    if not source.strip():
        raise ConfigError("The config has no name; give a file or a preset.")
    path = Path(source)
    is_file_name = path.suffix.lower() in READERS or path.is_absolute()
    return read_data(path) if is_file_name or os.path.exists(path) else preset_data(source, presets)
