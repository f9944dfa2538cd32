"""What people are told of a base model that is a transformer's file."""

from __future__ import annotations

from modules.diffusion.transformer_files.base import LAYOUT, FlowBase
from modules.diffusion.transformer_files.loading import quantized_as


def base_notes(base: FlowBase) -> list[str]:
    """Where the other components come from, and what becomes of quantised weights; empty for a whole model."""
    notes = [f"base_model: {component} comes from {file.name}." for component, file in base.encoders.items()]
    if base.transformer is None:
        return notes
    name = base.transformer.name
    notes += [
        f"base_model: {name} is the transformer alone; text encoders, autoencoder and scheduler come from {base.label} "
        f"({LAYOUT} chooses another)."
    ]
    if form := quantized_as(base.transformer):
        notes.append(
            f"base_model: {name} is in {form}; its weights are read in half precision, with the rounding of {form}. "
            "Prefer the file in bf16 of the same model, above all for fine_tune."
        )
    return notes
