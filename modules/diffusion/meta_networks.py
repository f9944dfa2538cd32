"""The UNet and the text encoders of a base model without their weights, on torch's meta device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CLIPTextConfig

from modules.diffusion import base_model_files
from modules.diffusion.components import CLASSES, required_hub_model
from modules.diffusion.fitting_weights import described_network
from modules.diffusion.hub.model import HubModel
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.text_encoders import TextEncoder
from modules.facts import FamilyFacts, KnownModel, known_model


@dataclass(frozen=True)
class MetaNetworks:
    """The networks that may be trained."""

    unet: nn.Module
    encoders: dict[str, TextEncoder]


def meta_networks(base_model: str | None, layout: str, facts: FamilyFacts) -> MetaNetworks | None:
    """As `load_components` would build them; None if their configuration is not known before it is
    downloaded.

    Raises ConfigError if they cannot be built.
    """
    folder = _configuration(base_model, layout, facts)
    if folder is None and (known := known_model(str(base_model))) is not None:
        return _known_networks(known, facts)
    if folder is None or not all((folder / name / "config.json").is_file() for name in ("unet", *facts.encoders)):
        return None
    base_model_files.check_small_files(folder, [folder / name for name in ("unet", *facts.encoders)], "base_model")
    unet, *encoders = (_described(folder, name) for name in ("unet", *facts.encoders))
    return MetaNetworks(unet, dict(zip(facts.encoders, encoders, strict=True)))


def _described(folder: Path, name: str) -> Any:
    label = f"base_model: {name}/config.json of the model in {str(folder)!r} cannot be used"
    with damage_refused(label), torch.device("meta"):
        return described_network(folder, name, CLASSES[name])


def _known_networks(known: KnownModel, facts: FamilyFacts) -> MetaNetworks | None:
    if set(known.networks) != {"unet", *facts.encoders}:
        return None
    with quiet_libraries(), torch.device("meta"):
        encoders = {name: CLASSES[name](CLIPTextConfig(**known.networks[name])) for name in facts.encoders}
        return MetaNetworks(CLASSES["unet"](**known.networks["unet"]), encoders)


def _configuration(base_model: str | None, layout: str, facts: FamilyFacts) -> Path | None:
    """The diffusers folder with the configuration of the model; None if it is not on this machine."""
    base = base_model_files.find_base_model(base_model, facts.pipelines, facts.components)
    if isinstance(base, Path) and base.is_dir():
        return base
    if isinstance(base, HubModel):
        return base.cached_folder()
    hub = None if layout else required_hub_model(str(base), layout, facts)
    return Path(layout) if hub is None else hub.cached_folder()
