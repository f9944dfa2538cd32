"""The names and shapes of the tensors of a diffusers folder's components, from their configs alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from modules.checkpoint.formats.diffusers_folder import DiffusersFolder
from modules.checkpoint.formats.folder_copy import WHOLE_LAYOUT
from modules.config import ConfigError
from modules.diffusion.base_model_files import LIBRARY_ERRORS, check_layer_counts, first_line
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.transformer_files.names import transformer_layout


def expected_shapes(component: str, layout: DiffusersFolder) -> dict[str, tuple[int, ...]]:
    """Of the tensors of a component's class with the config in `layout`. Raises ConfigError if it has no such class."""
    config = dict(layout.components[component])
    try:
        check_layer_counts(config)
        with quiet_libraries(), torch.device("meta"):
            module = _module(component, config)
    except LIBRARY_ERRORS as error:
        raise ConfigError(
            f"{component}/config.json in {str(layout.folder)!r} describes no network: {first_line(error)}",
            WHOLE_LAYOUT,
        ) from error
    names = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if not component.startswith("text_encoder"):
        return names
    # With the prefix that every version of transformers accepts.
    return {
        name if name.startswith(("text_model.", "text_projection.")) else f"text_model.{name}": shape
        for name, shape in names.items()
    }


def require_all_tensors(component: str, names: Iterable[str], model: DiffusersFolder) -> None:
    """Raises ConfigError if one of the component's tensors is not among the `names` of those in its files."""
    if missing := sorted(expected_shapes(component, model).keys() - set(names)):
        raise ConfigError(
            f"{str(model.folder)!r}: {component} has no {missing[0]!r}, which its config.json requires.", WHOLE_LAYOUT
        )


def _module(component: str, config: dict[str, Any]) -> torch.nn.Module:
    import diffusers  # takes seconds to import
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    if component.startswith("text_encoder"):
        text_class = CLIPTextModel if component == "text_encoder" else CLIPTextModelWithProjection
        text_encoder: torch.nn.Module = text_class(CLIPTextConfig.from_dict(config))
        return text_encoder
    name = {"unet": "UNet2DConditionModel", "vae": "AutoencoderKL"}.get(component, str(config.get("_class_name")))
    if component == "transformer" and transformer_layout(name, config) is None:
        raise ValueError(f"it is of the class {name[:60]}")
    network: torch.nn.Module = getattr(diffusers, name).from_config(config)
    return network
