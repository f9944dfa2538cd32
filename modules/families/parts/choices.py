"""What follows from a config and a base model before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config import ConfigError, TrainConfig
from modules.families.parts.diffusion_options import DiffusionOptions
from modules.families.parts.objectives import Prediction
from modules.families.parts.text_encoders import Layer, Reading, TextEncoder


def captions_are_fixed(config: TrainConfig) -> bool:
    """Whether a picture's captions are the same each time, so that their encodings can be kept."""
    return not any(c.enabled and (c.tag_shuffle or c.tag_dropout > 0) for c in config.concepts)


def prediction_of(scheduler: Mapping[str, Any], options: DiffusionOptions) -> Prediction:
    """What the UNet predicts, as the options or the base model's scheduler say.

    Raises ConfigError where that is something else, or does not go with a schedule that ends in pure noise.
    """
    if str(scheduler.get("_class_name", "")).startswith("EDM"):
        raise ConfigError(
            f"base_model: its scheduler is {scheduler['_class_name']}, another kind of noise schedule than that of "
            "Stable Diffusion; it is not supported.",
            "Choose another base model.",
        )
    wanted = options.prediction_type
    found: str = scheduler.get("prediction_type", "epsilon") if wanted == "auto" else wanted
    if found == "v_prediction":
        return "v_prediction"
    if found != "epsilon":
        raise ConfigError(
            f"base_model: its scheduler says that it predicts {found!r}, which is not supported.",
            "Set family_options.prediction_type to epsilon or v_prediction if you know better.",
        )
    if options.zero_terminal_snr:
        raise ConfigError(
            "family_options.zero_terminal_snr is true, but the base model predicts epsilon, which says nothing "
            "at pure noise.",
            "Set it to false, or family_options.prediction_type to v_prediction.",
        )
    return "epsilon"


def reading_of(layer: Layer, options: DiffusionOptions, encoders: Mapping[str, TextEncoder]) -> Reading:
    """How text encoders are read. Raises ConfigError where more layers are to be left out than they have."""
    read = Reading(layer, options.clip_skip)
    most = min(read.most_skipped(encoder) for encoder in encoders.values())
    if read.skip > most:
        raise ConfigError(f"family_options.clip_skip is {read.skip}; this model's text encoders allow {most} at most.")
    return read
