"""How large the networks of a base model are that are not trained, from its files or its name, without loading it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from modules.config import TrainConfig
from modules.diffusion import base_model_files
from modules.diffusion.bitsandbytes_layout import plain_shapes
from modules.diffusion.encoder_weights import kept_weights
from modules.diffusion.hub.model import HubModel
from modules.diffusion.quantized_networks import quantized_layers
from modules.diffusion.resolve_options import has_fixed_captions
from modules.facts import known_model
from modules.families._family import FrozenNetwork

_NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def frozen_networks(
    config: TrainConfig,
    base: Path | HubModel,
    dtypes: Mapping[str, torch.dtype],
    *,
    offload: bool,
    discards_encoders: bool,
    encoders: Mapping[str, nn.Module] = MappingProxyType({}),
    encoder_weights: str = "run",
) -> list[FrozenNetwork]:
    """Those of `dtypes`, by component: the autoencoder `vae`, and text encoders.

    `offload`: they leave the device after caching. `discards_encoders`: text encoders then leave host memory, too.
    `encoders` on the meta device are kept as `encoder_weights` says; of others the parameters are counted.
    """
    counts, is_exact = _parameters(base, [name for name in dtypes if name not in encoders])
    found = []
    for name, dtype in dtypes.items():
        if stored := _stored_bytes(base, name, dtype):
            kept, size = stored
        elif name in encoders:
            kept, size = kept_weights(encoders[name], encoder_weights, dtype)
        elif name in counts:
            kept, size = "run", counts[name] * dtype.itemsize
        else:
            continue
        is_cached = config.cache_latents and (name == "vae" or has_fixed_captions(config))
        needed: Literal["steps", "caching", "loaded"] = "caching" if is_cached and offload else "steps"
        if name != "vae" and discards_encoders:
            needed = "loaded" if is_cached else "steps"
        found.append(FrozenNetwork(name, _NAMES[dtype] if kept == "run" else kept, size, is_exact, needed))
    return found


def _stored_bytes(base: Path | HubModel, component: str, dtype: torch.dtype) -> tuple[str, int] | None:
    """The format of what is quantised in the files of a component, and its bytes, all else as `dtype`; None if nothing
    is."""
    folder = base.cached_folder() if isinstance(base, HubModel) else base
    layers = {} if folder is None else quantized_layers(folder, component)
    if folder is None or not layers:
        return None
    shapes = plain_shapes(base_model_files.weight_files(folder, component), layers)
    rest = sum(math.prod(shape) for name, shape in shapes.items() if name.removesuffix(".weight") not in layers)
    return next(iter(layers.values())).kind, rest * dtype.itemsize + sum(layer.bytes for layer in layers.values())


def _parameters(base: Path | HubModel, components: Sequence[str]) -> tuple[dict[str, int], bool]:
    """The number of parameters of each component, and whether they were counted."""
    folder = base.cached_folder() if isinstance(base, HubModel) else base
    if folder is not None and folder.is_dir():
        shapes = {
            each: base_model_files.read_shapes(base_model_files.weight_files(folder, each)).values()
            for each in components
        }
        return {each: sum(math.prod(shape) for shape in found) for each, found in shapes.items()}, True
    known = known_model(base.label) if isinstance(base, HubModel) else None
    if known is None:
        return {}, False
    return {each: round(known.frozen[each] * 1e9) for each in components if each in known.frozen}, False
