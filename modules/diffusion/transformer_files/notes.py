"""What people are told of a base model that is a transformer's file."""

from __future__ import annotations

from modules.diffusion.transformer_files.base import LAYOUT, FlowBase
from modules.diffusion.transformer_files.loading import stored_in_fp8


def base_notes(base: FlowBase) -> list[str]:
    """Where the other components come from, and what becomes of weights in fp8; empty for a whole model."""
    if base.transformer is None:
        return []
    name = base.transformer.name
    notes = [
        f"base_model: {name} is the transformer alone; text encoders, autoencoder and scheduler come from {base.label} "
        f"({LAYOUT} chooses another)."
    ]
    if stored_in_fp8(base.transformer):
        notes.append(
            f"base_model: {name} is in fp8; its weights become bf16, with the precision of fp8. Prefer the "
            "file in bf16 of the same model."
        )
    return notes
