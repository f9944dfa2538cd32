"""What the name of a base model on the hub tells: another family, or that it was distilled."""

from __future__ import annotations

from pathlib import Path

from modules.config import ConfigError, TrainConfig
from modules.config.family_about import family_about
from modules.facts import known_model


def check_known_model(config: TrainConfig) -> None:
    """Raises ConfigError if the base model is the hub name of a model that another family trains."""
    known = known_model(config.base_model or "")
    if known is not None and known.family != config.family and not Path(str(config.base_model)).exists():
        title = family_about(known.family).title
        raise ConfigError(
            f"base_model: {config.base_model!r} is {title}, which the family {config.family!r} does not train.",
            f"Set family to {known.family}, or choose another model.",
        )


def distillation_notes(config: TrainConfig) -> list[str]:
    """That training takes away what a model was distilled for, and which one to train; empty for others."""
    known = known_model(config.base_model or "")
    if known is None or not known.trained_instead:
        return []
    return [
        f"base_model: {config.base_model} was distilled to generate in few steps, which training gradually undoes. "
        f"Train {known.trained_instead} instead: its LoRAs work with both (docs/models.md)."
    ]
