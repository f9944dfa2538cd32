"""A transformer of diffusers with the weights of one file, which stay mapped into memory from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]
from torch import Tensor

from modules.config import ConfigError
from modules.diffusion.fitting_weights import described_network
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.model_files.open_file import open_model_file
from modules.diffusion.model_files.tensor_file import TensorFile
from modules.diffusion.transformer_files.names import transformer_layout
from modules.diffusion.transformer_files.original_name import OriginalName
from modules.diffusion.transformer_files.tensor_forms import to_diffusers
from modules.diffusion.transformer_files.whole import Network, find_originals

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_FROM_FP8 = torch.bfloat16  # holds every number of both


def load_transformer_file(file: Path, kind: Any, folder: Path) -> Any:
    """A transformer of diffusers' class `kind` with the config in `folder`, on the CPU, its weights as in `file`.

    Quantised ones become half precision. Only these and the few whose rows are in another order in diffusers take
    memory of their own. Raises ConfigError if the file does not hold such a transformer.
    """
    transformer = without_weights(kind, folder)
    with of_base_model(), open_model_file(file) as source:
        found = _tensors_of(source, transformer, str(folder))
        stored = {name: source.map(name) for name in dict.fromkeys(original.name for original, _ in found.values())}
        tensors = {
            name: to_diffusers(original, stored[original.name], shape) for name, (original, shape) in found.items()
        }
    transformer.load_state_dict(in_usable_formats(tensors, kind), assign=True)
    return transformer.eval()


def check_transformer_file(file: Path, transformer: Any, layout: str) -> None:
    """Compare the names and shapes in `file` with those of a transformer of diffusers, also on the meta device.

    Raises ConfigError as `load_transformer_file` does; `layout` is its folder or hub name, for the message.
    """
    with of_base_model(), open_model_file(file) as source:
        _tensors_of(source, transformer, layout)


def _tensors_of(source: TensorFile, transformer: Any, layout: str) -> dict[str, tuple[OriginalName, tuple[int, ...]]]:
    """As `find_originals`."""
    shapes = {name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()}
    kind, config = type(transformer).__name__, transformer.config
    names = transformer_layout(kind, config)
    if names is None:
        raise ConfigError(
            f"{str(source.path)!r} is a single file, and of a {kind} Tandem reads folders only.",
            "Give the diffusers folder of the model, or its name on the hub (owner/model).",
        )
    return find_originals(source, Network("transformer", config, shapes, kind, layout), names.name)


@contextmanager
def of_base_model() -> Iterator[None]:
    """Name the setting in errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"base_model: {error.message}", error.advice) from error


def quantized_as(file: Path) -> str:
    """In which format the weights of the file are, if they are quantised, for messages; else empty."""
    with of_base_model(), open_model_file(file) as source:
        return source.quantized_as


def without_weights(kind: Any, folder: Path) -> Any:
    """The network, whose parameters are on torch's meta device and whose other tensors are real."""
    label = f"base_model: transformer/config.json of the model in {str(folder)!r} cannot be used"
    with damage_refused(label), init_empty_weights():
        return described_network(folder, "transformer", kind)


def in_usable_formats(tensors: Mapping[str, Tensor], kind: Any) -> dict[str, Tensor]:
    """One half-precision format, and fp32; some classes keep their norms in fp32, as `from_pretrained` does."""
    wide = set(kind._keep_in_fp32_modules or ())
    found = {}
    for name, tensor in tensors.items():
        stored = tensor.to(_FROM_FP8) if tensor.dtype in FP8 else tensor
        found[name] = stored.float() if wide & set(name.split(".")) else stored
    if {torch.float16, torch.bfloat16} <= {tensor.dtype for tensor in found.values()}:
        return {name: tensor.float() for name, tensor in found.items()}
    return found
