"""The text encoders of a flow-matching pipeline without their weights, on torch's meta device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from torch import nn

from modules.diffusion import base_model_files
from modules.diffusion.fitting_weights import described_network
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.pipeline_classes import component_classes
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.facts import FamilyFacts, known_model


def meta_encoders(name: str, folder: Path | None, facts: FamilyFacts) -> dict[str, nn.Module]:
    """Frozen, those whose configuration is in `folder`, or without one known from the hub name of the base model.

    Raises ConfigError if they cannot be built.
    """
    with quiet_libraries(), torch.device("meta"):
        found = _known(name) if folder is None else _of_folder(folder, facts)
    return {encoder: network.requires_grad_(False) for encoder, network in found.items()}


def _of_folder(folder: Path, facts: FamilyFacts) -> dict[str, nn.Module]:
    _, classes, _ = component_classes(folder, facts.components)
    base_model_files.check_small_files(folder, [folder / encoder for encoder in facts.encoders], "base_model")
    found = {}
    for encoder in facts.encoders:
        if (folder / encoder / "config.json").is_file():
            with damage_refused(f"base_model: {encoder}/config.json of the model in {str(folder)!r} cannot be used"):
                found[encoder] = described_network(folder, encoder, classes[encoder])
    return found


def _known(name: str) -> Mapping[str, nn.Module]:
    known = known_model(name)
    found = {}
    for encoder, (class_name, settings) in (known.encoders if known is not None else {}).items():
        kind = getattr(transformers, class_name)
        found[encoder] = kind(kind.config_class(**settings))
    return found
