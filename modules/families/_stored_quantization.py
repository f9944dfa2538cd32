"""Whether a config can use a base model whose linear layers are quantised in its files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from modules.config import ConfigError, TrainConfig
from modules.diffusion.bitsandbytes_layout import TAKE_ANOTHER, StoredLayer
from modules.diffusion.quantized import QUANTIZED
from modules.diffusion.quantized_networks import quantized_layers


def stored_notes(config: TrainConfig, folder: Path, networks: Collection[str]) -> list[str]:
    """A sentence for each of the `networks` of the model in `folder` that is quantised in its files.

    Raises ConfigError for a method that trains quantised weights, for settings that want another format, and for a
    format that is not read.
    """
    found = {name: kind for name in networks if (kind := _kind(quantized_layers(folder, name)))}
    notes = []
    for name, kind in found.items():
        what = f"{name} of {str(config.base_model)!r} is quantised in its files (bitsandbytes {kind})"
        if name == "transformer" and config.method == "fine_tune":
            raise ConfigError(
                f"method is fine_tune, but {what}, and quantised weights cannot be trained.",
                "Set method to lora. Or use the model that it was quantised from.",
            )
        for setting, wanted in _asked_for(config, name).items():
            if wanted in QUANTIZED and wanted != kind:
                raise ConfigError(
                    f"{setting} is {wanted}, but {what}.",
                    f"Set it to run or {kind}. {TAKE_ANOTHER}",
                )
        notes.append(f"The {what}, and is kept so.")
    return notes


def _asked_for(config: TrainConfig, name: str) -> Mapping[str, object]:
    """The settings that say in which format a network is kept."""
    if name != "transformer":
        return {"family_options.text_encoder_weights": config.family_options.get("text_encoder_weights")}
    return {f"parts.{number}.weights": part.weights for number, part in enumerate(config.parts) if part.part == name}


def _kind(layers: Mapping[str, StoredLayer]) -> str:
    """nf4, int8, or both; empty if nothing is quantised."""
    return " and ".join(sorted({layer.kind for layer in layers.values()}))
