"""Merging adapters into the weights of a model: a diffusers folder or a single file, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.diffusers_folder import ComponentWeights, read_diffusers_folder
from modules.checkpoint.formats.file_types import DESCRIPTIONS, detect_file_type
from modules.checkpoint.formats.folder_copy import copy_components, copy_without_weights
from modules.checkpoint.formats.lora import adapter_file, read_adapter
from modules.checkpoint.formats.lora_origin import of_family
from modules.checkpoint.formats.lora_weights import CLIP_PREFIX, AdapterPrefixes, AdapterWeights, module_in_file
from modules.checkpoint.formats.metadata import SDXL
from modules.checkpoint.formats.oft import OftWeights, OutputOftWeights
from modules.checkpoint.formats.safetensors_file import HASH_KEY, LazyTensor, write_safetensors
from modules.checkpoint.formats.single_file import (
    WEIGHT_FILES,
    architecture_of,
    name_mappers,
    titles_of_files,
    transformer_layout_of,
)
from modules.config import ConfigError
from modules.diffusion.model_files.open_file import open_model_file
from modules.diffusion.model_files.scaled_file import IN_HEADER
from modules.diffusion.model_files.tensor_file import TensorFile
from modules.diffusion.transformer_files.names import layout_of_file
from modules.diffusion.transformer_files.original_name import ComponentConfig, OriginalName
from modules.diffusion.transformer_files.tensor_forms import part_rows
from modules.diffusion.transformer_files.whole import require_unscaled
from modules.facts import whole_model
from modules.files import PARTIAL, remove_tree

_ADVICE: Final = "Use the base model that it was trained on, or one of the same architecture."
_MERGED_FROM: Final = "modelspec.merged_from"
_WITH_MLP: Final = ".linear1.weight"  # of single blocks: query, key, value and the first layer of an MLP


@dataclass(frozen=True)
class Merge:
    """An adapter file and its strength: 0 leaves the model as it is, 1 is as trained.

    For `left_out` see `read_adapter`.
    """

    file: Path
    scale: float
    left_out: list[str] | None = None


@dataclass(frozen=True)
class _Edit:
    """A change of one tensor, of which it may be the third of a fused query, key and value."""

    adapter: AdapterWeights
    scale: float
    original: OriginalName | None = None


def fits(adapter: AdapterWeights, shape: Sequence[int]) -> bool:
    """Whether the adapter is for a weight of this shape [out, in] or [out, in, kh, kw]."""
    if len(shape) < 2:
        return False
    width = torch.Size(shape[1:]).numel()
    if isinstance(adapter, OftWeights | OutputOftWeights):
        return adapter.fits(shape[0], width)
    return adapter.matrix_shape == (shape[0], width)


def merged_weight(weight: Tensor, adapter: AdapterWeights, scale: float = 1.0) -> Tensor:
    """`weight` [out, in, ...] changed by an adapter that `fits`, as fp64: W + scale * delta.

    With DoRA's magnitude m of each row, W + scale * (m (W + delta) / |W + delta| - W), as ComfyUI and A1111 take it:
    scale 0 is the base model and scale 1 is what was trained.
    """
    base = weight.double()
    delta = adapter.delta(base).view(base.shape)
    if adapter.magnitude is None:
        return base + delta * scale
    whole = base + delta
    norms = whole.flatten(1).norm(dim=1)
    whole *= (adapter.magnitude.double() / norms).view(-1, *[1] * (base.dim() - 1))
    return base + (whole - base) * scale


def merge_into_folder(
    source: Path,
    merges: Sequence[Merge],
    out: Path,
    dtype: torch.dtype | None,
    prefixes: Callable[[str], AdapterPrefixes],
) -> None:
    """Write the diffusers folder `source` with the adapters merged as the folder `out`, which must not exist yet.

    `prefixes` gives the adapter prefixes of an architecture; without `dtype` tensors keep theirs. Of a flow-matching
    model only the transformer is written anew, all else is copied. Raises ConfigError
    if the adapters do not fit, OSError if the disk is full.
    """
    model = read_diffusers_folder(source)
    architecture = architecture_of(model)
    if not architecture:
        raise ConfigError(f"{str(source)!r} contains a {model.pipeline}; --merge takes {', '.join(titles_of_files())}.")
    found = [(merge, read_adapter(merge.file, prefixes(architecture), merge.left_out)) for merge in merges]
    partial_folder = out.with_name(f"{PARTIAL}{out.name}")
    remove_tree(partial_folder)
    try:
        copy_without_weights(source, partial_folder)
        components = list(model.components)
        if transformer_layout_of(model) is not None:
            components = ["transformer"]
            copy_components(source, partial_folder, leave_out="transformer")
        merged: set[int] = set()
        for component in components:
            with ComponentWeights(source / component) as weights:
                edits: dict[str, list[_Edit]] = {}
                for merge, adapters in found:
                    for adapter in adapters:
                        if adapter.submodule == component:
                            name = _stored_name(adapter, weights.names)
                            _require(merge.file, adapter, weights.shape(name) if name else None)
                            edits.setdefault(name, []).append(_Edit(adapter, merge.scale))
                            merged.add(id(adapter))
                tensors = _lazy_tensors(weights, edits, dtype)
                write_safetensors(partial_folder / component / WEIGHT_FILES[component], tensors, {})
        for merge, adapters in found:
            for adapter in adapters:
                if id(adapter) not in merged:
                    _require(merge.file, adapter, None)
        partial_folder.rename(out)
    except BaseException:
        remove_tree(partial_folder)
        raise


def merge_into_file(
    source: Path,
    merges: Sequence[Merge],
    out: Path,
    dtype: torch.dtype | None,
    prefixes: Callable[[str], AdapterPrefixes],
) -> None:
    """Write the single file `source`, a model of Stable Diffusion or the transformer of a flow-matching model, with the
    adapters merged as `out`; as for a folder."""
    with open_model_file(source) as weights:
        architecture, _ = whole_model(weights.names)
        find, names = _names_of(weights, architecture, prefixes)
        edits: dict[str, list[_Edit]] = {}
        for merge in merges:
            for adapter in read_adapter(merge.file, names, merge.left_out):
                original = find(adapter)
                name = "" if original is None else original.name
                _require(merge.file, adapter, _part_shape(weights, original))
                edits.setdefault(name, []).append(_Edit(adapter, merge.scale, original))
        titles = [weights.metadata.get(_MERGED_FROM) or weights.metadata.get("modelspec.title") or source.stem]
        stored = {key: value for key, value in weights.metadata.items() if key != IN_HEADER}
        metadata = {**stored, _MERGED_FROM: ", ".join([*titles, *(merge.file.stem for merge in merges)])}
        write_safetensors(out, _lazy_tensors(weights, edits, dtype), metadata | {HASH_KEY: ""})


def _names_of(
    weights: TensorFile, architecture: str, prefixes: Callable[[str], AdapterPrefixes]
) -> tuple[Callable[[AdapterWeights], OriginalName | None], AdapterPrefixes]:
    """Where an adapted weight is in the file, and the adapter prefixes of its model. Raises ConfigError if it is none.

    `architecture` is that of a whole model; empty for a transformer.
    """
    if architecture:
        mappers = name_mappers(architecture)
        config = _unet_config(weights.names)
        names = prefixes(SDXL if architecture.endswith("XL") else "stable-diffusion")
        return lambda adapter: mappers[adapter.submodule](f"{module_in_file(adapter)}.weight", config), names
    layout = layout_of_file(weights.names) if detect_file_type(weights.names) != "lora" else None
    if layout is None:
        what = DESCRIPTIONS[detect_file_type(weights.names)]
        raise ConfigError(
            f"{str(weights.path)!r} is {what}; --merge takes a model of Stable Diffusion 1, 2 or XL, or the "
            "transformer of a flow-matching model.",
            "Give the base model first, and the LoRA after --merge.",
        )
    require_unscaled(weights)
    return lambda adapter: layout.find(f"{adapter.module}.weight"), prefixes(layout.architecture)


def _lazy_tensors(
    weights: ComponentWeights | TensorFile, edits: Mapping[str, Sequence[_Edit]], dtype: torch.dtype | None
) -> dict[str, LazyTensor]:
    tensors = {}
    for name in weights.names:
        stored = weights.stored_dtype(name)
        chosen = dtype if dtype is not None and stored.is_floating_point else stored
        make = partial(_merged, weights, name, edits[name]) if name in edits else partial(weights.read, name)
        tensors[name] = LazyTensor(weights.shape(name), chosen, make)
    return tensors


def _merged(weights: ComponentWeights | TensorFile, name: str, edits: Sequence[_Edit]) -> Tensor:
    whole = weights.read(name).double()
    for edit in edits:
        part = _part(whole, edit.original)
        is_swapped = edit.original is not None and edit.original.form == "swapped"
        merged = merged_weight(_swapped(part) if is_swapped else part, edit.adapter, edit.scale)
        part.copy_(_swapped(merged) if is_swapped else merged)
    if not bool(whole.isfinite().all()):
        raise ConfigError(
            f"The merged weight {name!r} contains numbers that are not finite.",
            "The LoRA or the model is damaged: copy or download them again.",
        )
    return whole


def _part(tensor: Tensor, original: OriginalName | None) -> Tensor:
    """The view of a stored tensor that is the weight of one module of diffusers."""
    if original is not None and original.part is not None:
        count = 4 if original.name.endswith(_WITH_MLP) else 3
        parts: Sequence[Tensor] = tensor.split(part_rows(count, len(tensor), tensor.shape[1]))
        return parts[original.part]
    return tensor.T if original is not None and original.form == "transposed" else tensor


def _swapped(tensor: Tensor) -> Tensor:
    return torch.cat(tensor.chunk(2)[::-1])


def _part_shape(weights: TensorFile, original: OriginalName | None) -> Sequence[int] | None:
    if original is None or original.name not in weights.names:
        return None
    return _part(torch.empty(weights.shape(original.name), device="meta"), original).shape


def _require(file: Path, adapter: AdapterWeights, shape: Sequence[int] | None) -> None:
    """Raises ConfigError unless the model has a weight of this `shape` for the adapter."""
    if shape is None or not fits(adapter, shape):
        has = "has no such layer" if shape is None else f"has one of the shape {list(shape)}"
        raise ConfigError(
            f"{str(file)!r} is for a layer {adapter.submodule}.{adapter.module} of the shape "
            f"{list(adapter.matrix_shape)}{of_family(adapter_file(file))}, but the model {has}.",
            _ADVICE,
        )


def _stored_name(adapter: AdapterWeights, names: Sequence[str]) -> str:
    """The name of the adapted weight in a component's file, with or without CLIP's prefix; empty if there is none."""
    name = f"{module_in_file(adapter)}.weight"
    return next((each for each in (name, name.removeprefix(CLIP_PREFIX)) if each in names), "")


def _unet_config(names: Sequence[str]) -> ComponentConfig:
    """The part of the UNet's config that determines its original names, from these."""
    unet = "model.diffusion_model."
    present = set(names)
    blocks = sum(name.startswith(f"{unet}input_blocks.") and name.endswith(".0.in_layers.2.weight") for name in names)
    step = next((n for n in range(1, blocks + 2) if f"{unet}input_blocks.{n}.0.op.weight" in present), blocks + 1)
    layers = step - 1
    ups = range(layers, len(names), layers + 1)
    sides = [
        "CrossAttn" if f"{unet}output_blocks.{number}.2.conv.weight" in present else "Up"
        for number in ups
        if f"{unet}output_blocks.{number}.0.in_layers.2.weight" in present
    ]
    return {"layers_per_block": layers, "up_block_types": sides}
