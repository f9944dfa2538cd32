"""Options whose meaning depends on the rest of the config or on the base model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config import ConfigError, TrainConfig
from modules.diffusion.losses import Prediction
from modules.diffusion.options import DiffusionOptions
from modules.diffusion.text_encoders import Layer, PromptEncoding, TextEncoder


def has_fixed_captions(config: TrainConfig) -> bool:
    """Whether an image's captions are the same in every epoch, so that their embeddings can be cached."""
    return not any(c.enabled and (c.tag_shuffle or c.tag_dropout > 0 or c.wildcards) for c in config.concepts)


def resolve_prediction_type(scheduler: Mapping[str, Any], options: DiffusionOptions) -> Prediction:
    """What the UNet predicts, according to the options or to the base model's `scheduler` config.

    Raises ConfigError if it is neither epsilon nor v_prediction, or does not go with zero terminal SNR.
    """
    if str(scheduler.get("_class_name", "")).startswith("EDM"):
        raise ConfigError(
            f"base_model: its scheduler is {scheduler['_class_name']}, whose noise schedule is not that of Stable "
            "Diffusion; it is not supported.",
            "Choose another base model.",
        )
    requested = options.prediction_type
    found: str = scheduler.get("prediction_type", "epsilon") if requested == "auto" else requested
    if found == "v_prediction":
        return "v_prediction"
    if found != "epsilon":
        raise ConfigError(
            f"base_model: according to its scheduler it predicts {found!r}, which is not supported.",
            "Set family_options.prediction_type to epsilon or v_prediction if you know better.",
        )
    if options.zero_terminal_snr:
        raise ConfigError(
            "family_options.zero_terminal_snr is true, but the base model predicts epsilon, which is undefined at pure "
            "noise.",
            "Set it to false, or family_options.prediction_type to v_prediction.",
        )
    return "epsilon"


def resolve_zero_terminal_snr(scheduler: Mapping[str, Any], options: DiffusionOptions) -> bool:
    """Whether the noise schedule ends in pure noise, according to the options or the base model's `scheduler` config.

    Raises ConfigError if the options set epsilon for a base model whose schedule does, for which it is undefined.
    """
    rescaled = bool(scheduler.get("rescale_betas_zero_snr", False))
    is_velocity = scheduler.get("prediction_type") == "v_prediction"
    if rescaled and is_velocity and options.prediction_type == "epsilon":
        raise ConfigError(
            "family_options.prediction_type is epsilon, but the base model's noise schedule ends in pure noise (zero "
            "terminal SNR), for which epsilon is undefined.",
            "Set it to auto or v_prediction.",
        )
    return options.zero_terminal_snr or rescaled


def resolve_prompt_encoding(
    layer: Layer, options: DiffusionOptions, encoders: Mapping[str, TextEncoder]
) -> PromptEncoding:
    """How prompts are encoded. Raises ConfigError if clip_skip exceeds the layers of a text encoder."""
    encoding = PromptEncoding(layer, options.clip_skip)
    limit = min(encoding.max_clip_skip(encoder) for encoder in encoders.values())
    if encoding.clip_skip > limit:
        raise ConfigError(
            f"family_options.clip_skip is {encoding.clip_skip}; this model's text encoders allow at most {limit}."
        )
    return encoding
