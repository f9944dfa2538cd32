"""What can be checked of a config before anything is started, without reading an image."""

from __future__ import annotations

from pathlib import Path

from modules.config import DataError, TrainConfig
from modules.training.model_setup import check_available


def check_startable(config: TrainConfig) -> None:
    """Raises ConfigError for an unknown family or method, DataError for a missing image folder."""
    check_available(config)
    for concept in config.concepts:
        if concept.enabled and not Path(concept.path).is_dir():
            raise DataError(f"concepts: there is no folder {concept.path!r}.")
