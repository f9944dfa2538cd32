"""A base model that is a transformer in one file: where all that the file lacks comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from modules.config import ConfigError
from modules.diffusion import base_model_files
from modules.diffusion.hub.model import HubModel
from modules.diffusion.model_files.open_file import shapes_of_file
from modules.diffusion.transformer_files.loading import of_base_model
from modules.facts import PREFIXES, Shapes, all_facts, hub_model_of, is_lora, named_family, shares_files

LAYOUT = "family_options.layout"


@dataclass(frozen=True)
class FlowBase:
    """A flow-matching model: a diffusers folder, or one without the weights of its transformer, and their file."""

    model: Path | HubModel
    transformer: Path | None = None
    encoders: Mapping[str, Path] = field(default_factory=dict)  # files of text encoders, by component

    @property
    def hub_model(self) -> HubModel | None:
        """What of it comes from the hub."""
        return self.model if isinstance(self.model, HubModel) else None

    @property
    def option(self) -> str:
        """The setting that names the folder, for messages."""
        return "base_model" if self.transformer is None else LAYOUT

    @property
    def label(self) -> str:
        """The folder, or the name on the hub."""
        return self.model.label if isinstance(self.model, HubModel) else str(self.model)

    def folder(self) -> Path | None:
        """The folder; None if it is not on this computer yet."""
        return self.model.cached_folder() if isinstance(self.model, HubModel) else self.model

    def ensure_folder(self) -> Path:
        """The folder, downloaded if it has to be. Raises ConfigError if it is not available."""
        return self.model.ensure_cached() if isinstance(self.model, HubModel) else self.model

    def check(self, folder: Path, pipelines: Collection[str], components: Collection[str]) -> None:
        """Raises ConfigError unless `folder`, which is that of the model, is complete."""
        without = (*(() if self.transformer is None else ("transformer",)), *self.encoders)
        base_model_files.check_folder(folder, pipelines, components, option=self.option, without_weights=without)


def base_of_file(file: Path, layout: str, pipelines: Collection[str], components: Collection[str]) -> FlowBase:
    """The model that a transformer's file and the folder or hub name `layout` make; an empty `layout` is the model on
    the hub that the file is known to be of.

    Raises ConfigError if the file is no transformer.
    """
    with of_base_model():
        shapes = shapes_of_file(file)
    _require_transformer(file, shapes)
    name = layout or hub_model_of(_family(shapes, pipelines), shapes, file.name)
    if not name:
        raise ConfigError(
            f"base_model: {str(file)!r} is a transformer without text encoders and autoencoder, and it is not known "
            "which model they belong to.",
            f"Set {LAYOUT} to a diffusers folder of the same architecture, or to its name on the hub (owner/model).",
        )
    try:
        found = base_model_files.find_base_model(name, pipelines, components)
    except ConfigError as error:
        advice = "Give a diffusers folder, or the name of a model on the hub (owner/model)."
        raise ConfigError(error.message.replace("base_model", LAYOUT, 1), advice) from error
    if isinstance(found, HubModel):
        return FlowBase(replace(found, without_weights=("transformer",), needed_by=str(file)), file)
    if found.is_file():
        raise ConfigError(
            f"{LAYOUT} is {layout!r}, a file.", "Give the diffusers folder of a model of the same architecture."
        )
    return FlowBase(found, file)


def _family(shapes: Shapes, pipelines: Collection[str]) -> str:
    """The one whose layers the file has; of several, the one with these pipelines."""
    named = named_family(shapes)
    alike = (family for family, facts in all_facts().items() if set(facts.pipelines) & set(pipelines))
    return next((family for family in alike if shares_files(family, named)), named)


def _require_transformer(file: Path, names: Collection[str]) -> None:
    """Raises ConfigError if the file is not the transformer of a flow-matching model."""
    if is_lora(names):
        raise ConfigError(
            f"base_model: {str(file)!r} is a LoRA.", f"Give a model to start from. {base_model_files.LORA_ADVICE}"
        )
    if not named_family(names):
        is_stable_diffusion = any(name.startswith(PREFIXES[0]) for name in names)
        what = "a model of Stable Diffusion" if is_stable_diffusion else "not the transformer of a flow-matching model"
        raise ConfigError(
            f"base_model: {str(file)!r} is {what}, which this family does not train.",
            "Give the transformer's .safetensors or .gguf file, a diffusers folder, or the name of a model on the hub "
            "(owner/model).",
        )
