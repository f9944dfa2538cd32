"""Whether the weights of a component in a model folder are those that its config.json describes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from modules.config import ConfigError
from modules.diffusion.base_model_files import read_shapes, weight_files
from modules.diffusion.bitsandbytes_layout import plain_shapes, stored_layers
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.quantized import QuantizedLinear
from modules.files import file_size

ANOTHER_MODEL: Final = (
    "Copy or download the model folder again; its config.json and its weights have to be of the same model."
)
TRAINED: Final = ("transformer", "unet")
_NUMBERS_PER_BYTE: Final = 2  # of the files of a text encoder in 4 bits
_SPARE: Final = 1 << 27  # numbers of parts that files lack because they are not used, or are made anew
_NUMBER: Final = re.compile(r"\.\d+\.")
# Of language models that are used as text encoders: the head that predicts tokens, and what sees images. Files from
# which they were removed are as good.
_NOT_USED: Final = ("lm_head.", "visual.", "vision_tower.", "multi_modal_projector.")


def require_fitting(folder: Path, component: str, network: nn.Module) -> None:
    """Compare the headers of the component's files with `network`, of diffusers and built by its config.json, also on
    the meta device.

    Raises ConfigError for another shape or a missing tensor. Files with other names are those of an older version of
    the class, which renames tensors when it loads them: of these only tensors of the same name are compared.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for name, layer in network.named_modules():
        if isinstance(layer, QuantizedLinear):
            shapes[f"{name}.weight"] = (layer.out_features, layer.in_features)
    files = weight_files(folder, component)
    stored = plain_shapes(files, stored_layers(folder, component, files))
    require_shapes("base_model: ", files, stored, shapes)
    if stored.keys() <= shapes.keys() and (missing := sorted(shapes.keys() - stored.keys())):
        raise _missing("base_model: ", files, missing)


def require_shapes(
    prefix: str, files: Sequence[Path], stored: Mapping[str, Iterable[int]], shapes: Mapping[str, Iterable[int]]
) -> None:
    """Raises ConfigError, which begins with `prefix`, if a tensor of `stored` has not the shape that `shapes` gives
    it; tensors without one are ignored."""
    for name, shape in stored.items():
        if name in shapes and [*shape] != [*shapes[name]]:
            raise _misshapen(prefix, files, name, shape, shapes[name])


def require_stored(label: str, files: Sequence[Path], build: Callable[[], nn.Module]) -> None:
    """Raises ConfigError, which begins with `label`, if the network that `build` makes has many more numbers than its
    files: libraries would take memory for whatever they lack. What cannot be built is accepted.

    Tensors are not compared: transformers renames those of many files while it loads them.
    """
    described = 0
    with suppress(ConfigError), damage_refused(label), torch.device("meta"):
        network = build()
        described = sum(tensor.numel() for tensor in (*network.parameters(), *network.buffers()))
    size = sum(map(file_size, files))
    if described > _NUMBERS_PER_BYTE * size + _SPARE:
        raise ConfigError(
            f"{label}: its config.json describes {described:,} numbers, but the weights have {size:,} bytes.",
            ANOTHER_MODEL,
        )


def described_network(folder: Path, component: str, kind: Any) -> Any:
    """A network of the class `kind` of diffusers or transformers as its config.json describes it.

    Raises what these raise; meant for the meta device.
    """
    where: dict[str, Any] = {"subfolder": component, "local_files_only": True}
    if hasattr(kind, "load_config"):  # of diffusers
        return kind.from_config(kind.load_config(folder, **where))
    return kind(kind.config_class.from_pretrained(folder, **where))


def require_stored_component(
    folder: Path, component: str, kind: Any, files: Sequence[Path], option: str = "base_model"
) -> None:
    """As `require_stored`, for a component of a model folder."""
    label = f"{option}: {component} of the model in {str(folder)!r}"
    require_stored(label, files, partial(described_network, folder, component, kind))


def require_loaded(folder: Path, component: str, info: Mapping[str, Any]) -> None:
    """Raises ConfigError if `from_pretrained` had to invent weights; `info` is its `output_loading_info`."""
    files = weight_files(folder, component)
    for name, stored, wanted in info["mismatched_keys"]:
        raise _misshapen("base_model: ", files, name, stored, wanted)
    missing = sorted(filter(is_used, info["missing_keys"]))
    if missing:
        raise _missing("base_model: ", files, missing)
    if component in TRAINED and (surplus := of_more_blocks(read_shapes(files), info["unexpected_keys"])):
        raise ConfigError(
            f"base_model: {str(files[0].parent)!r} has {surplus!r}, a layer of a block that config.json does not "
            "describe.",
            ANOTHER_MODEL,
        )


def is_used(name: str) -> bool:
    """Whether a text encoder needs the tensor of this name."""
    return not any(part in f"{name}." for part in _NOT_USED)


def of_more_blocks(names: Collection[str], unexpected: Iterable[str]) -> str:
    """One of the `unexpected` tensors, which were not loaded, that is named as loaded ones of other blocks are; or
    an empty string. There are harmless ones of other names."""
    left = set(unexpected)
    loaded = {_NUMBER.sub(".*.", name) for name in names if name not in left}
    return next((name for name in sorted(left) if _NUMBER.search(name) and _NUMBER.sub(".*.", name) in loaded), "")


def _misshapen(
    prefix: str, files: Sequence[Path], name: str, stored: Iterable[int], wanted: Iterable[int]
) -> ConfigError:
    own = next((file for file in files if name in read_shapes([file])), files[0])
    return ConfigError(
        f"{prefix}{str(own)!r}: {name!r} has the shape {[*stored]}, but {own.parent.name}/config.json describes one of "
        f"the shape {[*wanted]}.",
        ANOTHER_MODEL,
    )


def _missing(prefix: str, files: Sequence[Path], names: Sequence[str]) -> ConfigError:
    more = f" and {len(names) - 1} other tensors" if len(names) > 1 else ""
    place = repr(str(files[0])) if len(files) == 1 else f"the files in {str(files[0].parent)!r}"
    have = "has" if len(files) == 1 else "have"
    return ConfigError(
        f"{prefix}{place} {have} no {names[0]!r}{more}, which {files[0].parent.name}/config.json requires.",
        ANOTHER_MODEL,
    )
