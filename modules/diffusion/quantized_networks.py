"""Transformers and text encoders whose linear layers are quantised in their files: loaded as they are kept there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modules.config import ConfigError
from modules.diffusion.base_model_files import open_safetensors, read_shapes, weight_files
from modules.diffusion.bitsandbytes_layout import TAKE_ANOTHER, StoredLayer, is_part_of, stored_layers
from modules.diffusion.fitting_weights import ANOTHER_MODEL, require_fitting, require_loaded, require_stored_component
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.quantized import STORED_PLAIN, replace_weight_
from modules.diffusion.transformer_files.loading import in_usable_formats, without_weights


def quantized_layers(folder: Path, component: str) -> dict[str, StoredLayer]:
    """The linear layers of a component that are quantised in its files, by name; empty without files.

    Raises ConfigError if they are quantised in a way that is not read.
    """
    has_files = any((folder / component).glob("*.safetensors"))
    return stored_layers(folder, component, weight_files(folder, component) if has_files else [])


def require_plain(folder: Path, component: str) -> None:
    """Raises ConfigError if the weights of a component are quantised in its files."""
    if layers := quantized_layers(folder, component):
        kind = next(iter(layers.values())).kind
        raise ConfigError(
            f"base_model: {component} of the model in {str(folder)!r} is quantised (bitsandbytes {kind}), which Tandem "
            "reads of transformers and of their text encoders alone.",
            "Use the model that it was quantised from.",
        )


def describe_quantized_(network: nn.Module, folder: Path, component: str) -> None:
    """Make the layers of a network on the meta device that are quantised in their files QuantizedLinear, in place.

    Raises ConfigError if the network has no such layers.
    """
    if layers := quantized_layers(folder, component):
        _place_(network, layers, StoredLayer.empty)


def load_quantized_transformer(folder: Path, kind: Any, layers: Mapping[str, StoredLayer]) -> Any:
    """A transformer of diffusers' class `kind`, on the CPU, all of it mapped from its files but scales.

    Raises ConfigError if the files do not fit its config.
    """
    transformer = without_weights(kind, folder)
    _place_(transformer, layers, StoredLayer.empty)
    require_fitting(folder, "transformer", transformer)
    _fill_(transformer, layers)
    found = transformer.load_state_dict(
        in_usable_formats(_plain_tensors(folder, "transformer", layers), kind), strict=False, assign=True
    )
    info = {"mismatched_keys": (), "missing_keys": found.missing_keys, "unexpected_keys": found.unexpected_keys}
    require_loaded(folder, "transformer", info)
    return transformer.eval()


def load_quantized_encoder(
    folder: Path, component: str, kind: Any, dtype: torch.dtype, layers: Mapping[str, StoredLayer]
) -> nn.Module:
    """A text encoder of transformers' class `kind`, on the CPU, what is not quantised in `dtype`.

    transformers itself renames the tensors of older files: it is given stand-ins for the quantised ones, of one number
    each, and where these are found afterwards the layers belong. Raises ConfigError if it cannot be loaded.
    """
    require_stored_component(folder, component, kind, weight_files(folder, component))
    state, stand_ins = _plain_tensors(folder, component, layers), {}
    for name, layer in layers.items():
        stand_in = torch.empty(1, dtype=dtype)
        stand_ins[stand_in.data_ptr()] = layer
        state[f"{name}.weight"] = stand_in.expand(layer.shape)
    label = f"base_model: {component} of the model in {str(folder)!r} cannot be loaded"
    with damage_refused(label, folder=folder / component):
        config = kind.config_class.from_pretrained(folder, subfolder=component, local_files_only=True)
        config.__dict__.pop("quantization_config", None)
        network, info = kind.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    require_loaded(folder, component, info)
    placed = {
        name: stand_ins[module.weight.data_ptr()]
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and module.weight.data_ptr() in stand_ins
    }
    known = {layer.name for layer in placed.values()} | {
        name.removesuffix(".weight") for name in info["unexpected_keys"]
    }
    if lost := [name for name in layers if name not in known]:
        raise ConfigError(
            f"base_model: {component} of the model in {str(folder)!r} has {lost[0]!r} in {layers[lost[0]].kind}, for "
            f"which {kind.__name__} has no linear layer.",
            TAKE_ANOTHER,
        )
    _place_(network, placed, StoredLayer.read)
    loaded: nn.Module = network
    return loaded


def _plain_tensors(folder: Path, component: str, layers: Mapping[str, StoredLayer]) -> dict[str, Tensor]:
    """All tensors of the files that belong to no quantised layer, mapped from them."""
    found = {}
    for file in weight_files(folder, component):
        with open_safetensors(file) as opened:
            names = [name for name in read_shapes([file]) if not is_part_of(layers, name)]
            found.update({name: opened.get_tensor(name) for name in names})
    return found


def _place_(
    network: nn.Module, layers: Mapping[str, StoredLayer], bits: Callable[[StoredLayer], tuple[Tensor, Tensor]]
) -> None:
    """Make the layers of these names QuantizedLinear; note on the network which of its others stay as they are."""
    modules = dict(network.named_modules())
    for name, stored in layers.items():
        layer = modules.get(name)
        if type(layer) is not nn.Linear:
            what = "no layer of this name" if layer is None else f"a {type(layer).__name__} of this name"
            raise _unfitting(stored, f"describes {what}")
        if tuple(layer.weight.shape) != stored.shape:
            raise _unfitting(stored, f"describes one of the shape {[*layer.weight.shape]}")
        replace_weight_(layer, *bits(stored))
    plain = [name for name, module in network.named_modules() if type(module) is nn.Linear]
    setattr(network, STORED_PLAIN, [f"^{re.escape(name)}$" for name in plain])


def _fill_(network: nn.Module, layers: Mapping[str, StoredLayer]) -> None:
    """Give the quantised layers, which are on the meta device, their bits."""
    for name, stored in layers.items():
        layer: Any = network.get_submodule(name)
        layer.hold(*stored.read())


def _unfitting(stored: StoredLayer, what: str) -> ConfigError:
    return ConfigError(
        f"base_model: {str(stored.file)!r}: the layer {stored.name!r} has the shape {[*stored.shape]} in "
        f"{stored.kind}, but {stored.file.parent.name}/config.json {what}.",
        ANOTHER_MODEL,
    )
