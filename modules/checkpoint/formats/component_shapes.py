"""The names and shapes of the tensors of a diffusers folder's components, from their configs alone."""

from __future__ import annotations

from typing import Any, Final

import torch

from modules.checkpoint.formats.diffusers_folder import ComponentWeights, DiffusersFolder
from modules.checkpoint.formats.folder_copy import WHOLE_LAYOUT
from modules.config import ConfigError
from modules.diffusion.base_model_files import check_layer_counts, refuse_chosen_code
from modules.diffusion.fitting_weights import ANOTHER_MODEL
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.transformer_files.names import transformer_layout

_OLDER_ATTENTION: Final = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}


def expected_shapes(component: str, layout: DiffusersFolder) -> dict[str, tuple[int, ...]]:
    """Of the tensors of a component's class with the config in `layout`. Raises ConfigError if it has no such class."""
    config = dict(layout.components[component])
    refuse_chosen_code(config, f"{component}/config.json in {str(layout.folder)!r}")
    label = f"{component}/config.json in {str(layout.folder)!r} describes no network"
    with damage_refused(label, WHOLE_LAYOUT), torch.device("meta"):
        check_layer_counts(config)
        module = _module(component, config)
    names = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    return {_present_name(component, name): shape for name, shape in names.items()}


def require_fitting_weights(component: str, weights: ComponentWeights, model: DiffusersFolder) -> None:
    """Raises ConfigError if a tensor of the component is missing in its files, or not of the shape that its config
    requires."""
    expected = expected_shapes(component, model)
    names = {_present_name(component, name): name for name in weights.names}
    for name, shape in expected.items():
        if name not in names:
            raise ConfigError(
                f"{str(model.folder)!r}: {component} has no {name!r}, which its config.json requires.", WHOLE_LAYOUT
            )
        if weights.shape(names[name]) != shape:
            raise ConfigError(
                f"{str(weights.file(names[name]))!r}: {names[name]!r} has the shape "
                f"{[*weights.shape(names[name])]}, but {component}/config.json describes one of the shape {[*shape]}.",
                ANOTHER_MODEL,
            )


def _present_name(component: str, name: str) -> str:
    """As in `expected_shapes`: text encoders with the prefix that every version of transformers accepts, the attention
    of autoencoders as diffusers names it today."""
    if component == "vae":
        return next((name.replace(old, new) for old, new in _OLDER_ATTENTION.items() if old in name), name)
    has_prefix = not component.startswith("text_encoder") or name.startswith(("text_model.", "text_projection."))
    return name if has_prefix else f"text_model.{name}"


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
