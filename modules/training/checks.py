"""What can be checked of a config before anything is started, without reading an image."""

from __future__ import annotations

from pathlib import Path

from modules.config import DataError, TrainConfig
from modules.training.model_setup import check_available


def check_startable(config: TrainConfig) -> list[str]:
    """Notes on the base model. Raises ConfigError for an unknown family or method, or a base model that cannot be
    trained, DataError for a missing image folder."""
    family = check_available(config)
    for concept in config.concepts:
        if concept.enabled and not Path(concept.path).is_dir():
            raise DataError(f"concepts: there is no folder {concept.path!r}.")
    return list(family.base_model_notes(config))
