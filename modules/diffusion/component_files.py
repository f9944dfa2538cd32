"""The components of a model folder, each by itself: loaded in the dtype that is asked for, copied, identified."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import diffusers
import torch
from diffusers.configuration_utils import ConfigMixin
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from modules.config import ConfigError
from modules.diffusion import base_model_files
from modules.diffusion.base_model_files import DAMAGED
from modules.diffusion.fitting_weights import (
    described_network,
    require_fitting,
    require_loaded,
    require_stored_component,
)
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.quantized_networks import require_plain
from modules.diffusion.samplers import build_scheduler
from modules.files import printable, read_json


def load_network(folder: Path, name: str, kind: Any, dtype: torch.dtype) -> Any:
    """A network in `dtype`, from its safetensors, which are not quantised.

    Raises ConfigError if they are, if it is damaged, or does not fit its config.
    """
    require_plain(folder, name)
    files = base_model_files.weight_files(folder, name)
    of_diffusers = issubclass(kind, ModelMixin)
    arguments = {
        ("torch_dtype" if of_diffusers else "dtype"): dtype,
        "use_safetensors": True,
        "variant": base_model_files.variant_of(files),
        "output_loading_info": True,
    }
    if not of_diffusers:  # whose error says nothing of the tensor, while the info has it
        arguments["ignore_mismatched_sizes"] = True
        require_stored_component(folder, name, kind, files)
    # before a config can make diffusers fill the memory with layers for which there are no weights
    elif (described := _without_weights(folder, name, kind)) is not None:
        require_fitting(folder, name, described)
    network, info = load_part(folder, name, kind, **arguments)
    require_loaded(folder, name, info)
    return network


def load_part(folder: Path, name: str, kind: Any, **arguments: object) -> Any:
    """A component of a model folder by its class's `from_pretrained`. Raises ConfigError if it is damaged."""
    label = f"base_model: {name} of the model in {str(folder)!r} cannot be loaded"
    with damage_refused(label, folder=folder / name):
        return kind.from_pretrained(folder, subfolder=name, local_files_only=True, **arguments)


def _without_weights(folder: Path, name: str, kind: Any) -> nn.Module | None:
    """A network of diffusers on the meta device; None if its config describes none."""
    with suppress(ConfigError), damage_refused(name), torch.device("meta"):
        built: nn.Module = described_network(folder, name, kind)
        return built
    return None


def scheduler_config(folder: Path, option: str) -> dict[str, Any]:
    """The config of the scheduler of a model folder. Raises ConfigError if diffusers has no such scheduler."""
    file = folder / "scheduler" / "scheduler_config.json"
    label = f"{option}: in the model {str(folder)!r} scheduler/{file.name}"
    with damage_refused(f"{label} cannot be used"):
        config = dict(cast("dict[str, Any]", read_json(file, only_finite=False)))
        kind = getattr(diffusers, str(config.get("_class_name")), None)
        if not (isinstance(kind, type) and issubclass(kind, diffusers.SchedulerMixin)):
            name = printable(repr(config.get("_class_name")), 80)
            raise ConfigError(f"{label} names the class {name}, which is no scheduler of diffusers.", DAMAGED)
        build_scheduler(kind, config)
    return config


def copy_with_weights(module: Any, state: Mapping[str, Tensor]) -> nn.Module:
    """A module of the same configuration with the weights `state`, on the CPU; fp64 becomes fp32."""
    plain = {n: t.to("cpu", torch.float32 if t.dtype == torch.float64 else None).contiguous() for n, t in state.items()}
    with torch.device("meta"):  # initialising weights would advance the random state
        is_of_diffusers = isinstance(module, ConfigMixin)
        copy: nn.Module = type(module).from_config(module.config) if is_of_diffusers else type(module)(module.config)
    copy.load_state_dict(plain, assign=True)
    return copy


def weights_fingerprint(module: nn.Module) -> str:
    """The first 128 bits of the SHA-256 of all parameters, as hex."""
    hasher = hashlib.sha256()
    for weight in module.parameters():
        hasher.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()[:32]
