"""What can be checked of a config before anything is started, without reading a picture."""

from __future__ import annotations

from pathlib import Path

from modules.config import DataError, TrainConfig
from modules.training.model_setup import check_available


def check_startable(config: TrainConfig) -> None:
    """Raise ConfigError for a family or method that is not there, DataError for a folder of pictures that is not."""
    check_available(config)
    for concept in config.concepts:
        if concept.enabled and not Path(concept.path).is_dir():
            raise DataError(f"concepts: there is no folder {concept.path!r}.")
