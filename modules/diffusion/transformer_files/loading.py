"""A transformer of diffusers with the weights of one file, which stay mapped into memory from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion import base_model_files
from modules.diffusion.base_model_files import first_line
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.safetensors_reader import SafetensorsFile
from modules.diffusion.transformer_files.names import transformer_layout
from modules.diffusion.transformer_files.tensor_forms import to_diffusers
from modules.diffusion.transformer_files.whole import Network, find_originals

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_FROM_FP8 = torch.bfloat16  # holds every number of both


def load_transformer_file(file: Path, kind: Any, folder: Path) -> Any:
    """A transformer of diffusers' class `kind` with the config in `folder`, on the CPU, its weights as in `file`.

    Those in fp8 become bf16. Only these and the few whose rows are in another order in diffusers take memory of their
    own. Raises ConfigError if the file does not hold such a transformer.
    """
    transformer, config = _without_weights(kind, folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()}
    layout = transformer_layout(kind.__name__, config)
    if layout is None:
        raise ConfigError(
            f"base_model: {str(file)!r} is a single file, and of a {kind.__name__} Tandem reads folders only.",
            "Give the diffusers folder of the model, or its name on the hub (owner/model).",
        )
    network = Network("transformer", config, shapes, kind.__name__, str(folder))
    try:
        with SafetensorsFile(file) as source:
            tensors = {
                name: to_diffusers(original, source.read(original.name), shape)
                for name, (original, shape) in find_originals(source, network, layout.name).items()
            }
    except ConfigError as error:
        raise ConfigError(f"base_model: {error.message}", error.advice) from error
    transformer.load_state_dict(_in_usable_formats(tensors, kind), assign=True)
    return transformer.eval()


def stored_in_fp8(file: Path) -> bool:
    """Whether weights of the file are in fp8."""
    return any(kind.startswith("F8_") for kind in base_model_files.stored_formats([file]).values())


def _without_weights(kind: Any, folder: Path) -> tuple[Any, Mapping[str, Any]]:
    """The network, whose parameters are on torch's meta device and whose other tensors are real, and its config."""
    try:
        with quiet_libraries(), init_empty_weights():
            config = kind.load_config(folder, subfolder="transformer", local_files_only=True)
            return kind.from_config(config), config
    except base_model_files.LIBRARY_ERRORS as error:
        raise ConfigError(
            f"base_model: the transformer that {str(folder)!r} describes cannot be built: {first_line(error)}",
            base_model_files.DAMAGED,
        ) from error


def _in_usable_formats(tensors: Mapping[str, Tensor], kind: Any) -> dict[str, Tensor]:
    """One half-precision format, and fp32; some classes keep their norms in fp32, as `from_pretrained` does."""
    wide = set(kind._keep_in_fp32_modules or ())
    found = {}
    for name, tensor in tensors.items():
        stored = tensor.to(_FROM_FP8) if tensor.dtype in FP8 else tensor
        found[name] = stored.float() if wide & set(name.split(".")) else stored
    if {torch.float16, torch.bfloat16} <= {tensor.dtype for tensor in found.values()}:
        return {name: tensor.float() for name, tensor in found.items()}
    return found
