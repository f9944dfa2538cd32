"""LoRAs of flow-matching transformers with the names of the models' own code.

`lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight` of kohya-ss/sd-scripts (networks/lora_flux.py, lora_sd3.py),
`diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight` of ostris/ai-toolkit and ComfyUI, and diffusers' names with
any of these prefixes, as OneTrainer's `lora_transformer_transformer_blocks_0_attn_to_q` (comfy/lora.py). The LoRA of a
fused layer becomes one for each of diffusers' layers, with the same `down`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.lora_diffusers import alpha_of
from modules.checkpoint.formats.lora_kohya import kohya_alpha, kohya_magnitude
from modules.checkpoint.formats.lora_weights import LoraWeights, Rows, require_tensor, take_rows
from modules.config import ConfigError
from modules.diffusion.transformer_files.names import transformer_files
from modules.diffusion.transformer_files.tensor_forms import part_rows
from modules.facts import TransformerFile

TRANSFORMER: Final = "transformer"
# What programs put before the names of layers, and none of which tells the model: sd-scripts and musubi-tuner,
# OneTrainer, LyCORIS and SimpleTuner, peft, DiffSynth, ai-toolkit and ComfyUI, diffusers.
_CONTAINERS: Final = re.compile(
    r"(lora_unet__?|lora_transformer_|lycoris_|(base_model\.model|pipe\.dit|(model\.)?diffusion_model|transformer)\.)*"
)
_PEFT: Final = ".lora_A.weight"
_DOWN: Final = {".lora_down.weight": ".lora_up.weight", _PEFT: ".lora_B.weight"}
_DIFFUSERS: Final = TransformerFile({}, "")
_NUMBER: Final = re.compile(r"(blocks|layers|norms|refiner)_(\d{1,4})_")


def read_transformer_lora(
    file: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, object]
) -> tuple[list[LoraWeights], set[str]] | None:
    """The adapters, and the names of the tensors that they use; None if these are not the names of such a model.

    `settings` are peft's, as in `header_settings`. Raises ConfigError if a tensor is missing or damaged.
    """
    downs = {name.removesuffix(end): (name, end) for name in tensors for end in _DOWN if name.endswith(end)}
    if any(stem.startswith("transformer.") and end == _PEFT for stem, (_, end) in downs.items()):
        ours = {name.replace(".", "_") for each in transformer_files().values() for name in each.names}
        if all(stem == f"transformer.{_bare(stem)}" and _flat(stem)[0] in ours for stem in downs):
            return None  # diffusers' layout
    ups = {stem: require_tensor(file, tensors, stem + _DOWN[end]) for stem, (_, end) in downs.items()}
    shapes = {stem: (len(ups[stem]), tensors[name].shape[1:].numel()) for stem, (name, _) in downs.items()}
    layers = transformer_layers(file, shapes)
    if layers is None:
        return None
    found: list[LoraWeights] = []
    used: set[str] = set()
    for stem, (name, end) in downs.items():
        down, up = tensors[name], ups[stem]
        magnitude = kohya_magnitude(file, stem, tensors, len(up))
        for vector in (f"{stem}.lora_magnitude_vector", f"{stem}.lora_magnitude_vector.weight"):
            magnitude = tensors[vector].flatten() if vector in tensors else magnitude
            used.add(vector)
        alpha = layer_alpha(file, stem, tensors, settings, len(down))
        parts = [take_rows(up, rows) for _, rows in layers[stem]]
        columns = _own_columns(parts, len(down))
        for (module, rows), part, keep in zip(layers[stem], parts, columns, strict=True):
            own = None if magnitude is None else take_rows(magnitude, rows)
            if keep is None:
                found.append(LoraWeights(TRANSFORMER, module, down, part, alpha, own))
            else:
                scaled = alpha * int(keep.sum()) / len(keep)
                found.append(LoraWeights(TRANSFORMER, module, down[keep], part[:, keep], scaled, own))
        used |= {name, stem + _DOWN[end], f"{stem}.alpha", f"{stem}.dora_scale"}
    return found, used


def layer_alpha(
    file: Path, stem: str, tensors: Mapping[str, Tensor], settings: Mapping[str, object], rank: int
) -> float:
    """Alpha of a layer: its own tensor, or what peft's settings say, or the rank."""
    if f"{stem}.alpha" in tensors:
        return kohya_alpha(file, stem, tensors, rank)
    return alpha_of(file, settings, TRANSFORMER, _bare(stem), None, rank)


def transformer_layers(
    file: Path, shapes: Mapping[str, tuple[int, int] | None]
) -> dict[str, list[tuple[str, Rows]]] | None:
    """The layers of diffusers' transformer that each of these key prefixes is for, with their rows of a fused layer.

    `shapes` are rows and columns of the prefixes' layers, None for one that does not tell. None if these are not the
    names of a model that is known. Raises ConfigError if the shapes are those of no model with these names.
    """
    named = [table for table in _tables() if shapes and all(_flat(stem)[0] in table[1] for stem in shapes)]
    known = {stem: shape for stem, shape in shapes.items() if shape is not None}
    layers = next((table for table in named if _fits(*table, known)), None)
    if layers is None:
        if named:
            raise ConfigError(
                f"{str(file)!r} is damaged: a layer has another number of rows than in any model with these names.",
                "Copy or download it again.",
            )
        return None
    found: dict[str, list[tuple[str, Rows]]] = {}
    for stem, shape in shapes.items():
        flat, number = _flat(stem)
        modules = [module.replace("*", number) for module in layers[1][flat]]
        rows: list[Rows] = [()] * len(modules)
        if shape is not None and len(modules) > 1:
            edges = accumulate(part_rows(len(modules), *shape), initial=0)
            rows = [(slice(start, stop),) for start, stop in pairwise(edges)]
        elif shape is not None and is_swapped(layers[0], flat, modules[0], shape):
            rows = [(slice(shape[0] // 2, shape[0]), slice(0, shape[0] // 2))]
        found[stem] = list(zip(modules, rows, strict=True))
    return found


def _own_columns(parts: Sequence[Tensor], rank: int) -> Sequence[Tensor | None]:
    """The columns of `up` that each part of a fused layer has for itself, where several LoRAs were joined to one; else
    None.
    """
    used = torch.stack([(part.flatten(1) != 0).any(0) for part in parts])
    is_joined = len(parts) > 1 and used.shape[1] == rank and bool(used.any(1).all()) and int(used.sum(0).max()) == 1
    return list(used) if is_joined else [None] * len(parts)


def _bare(stem: str) -> str:
    """The layer's name without what programs put before it."""
    return _CONTAINERS.sub("", stem, count=1)


def _flat(stem: str) -> tuple[str, str]:
    """The layer as in the tables, but with underscores, and the number of its block."""
    plain = _bare(stem).replace(".", "_")
    number = _NUMBER.search(plain)
    return _NUMBER.sub(r"\1_*_", plain, count=1), number[2] if number else ""


def _tables() -> Iterator[tuple[TransformerFile, Mapping[str, Sequence[str]]]]:
    """By the name in a family's own code diffusers' layers; then by diffusers' names."""
    files = transformer_files().values()
    for file in files:
        layers: dict[str, list[str]] = {}
        for ours, theirs in file.names.items():
            layers.setdefault(theirs.replace(".", "_"), []).append(ours)
        yield file, layers
    for file in files:
        yield _DIFFUSERS, {ours.replace(".", "_"): [ours] for ours in file.names}


def _fits(file: TransformerFile, layers: Mapping[str, Collection[str]], shapes: Mapping[str, tuple[int, int]]) -> bool:
    """Whether all layers with these rows and columns, which have names of the file, are of its model."""
    widths = file.mlp_rows
    for stem, (rows, columns) in shapes.items():
        flat, _ = _flat(stem)
        if flat == "single_blocks_*_linear1" and rows != (3 + widths) * columns:
            return False
        if flat in ("double_blocks_*_img_mlp_0", "double_blocks_*_txt_mlp_0") and rows != widths * columns:
            return False
        if file.is_own is not None and file.is_own(flat, rows, columns) is False:
            return False
        key_rows = part_rows(3, rows, columns)[1] if len(layers[flat]) == 3 else 1
        if key_rows < 1 or (len(layers[flat]) == 3 and rows not in (3 * key_rows, columns + 2 * key_rows)):
            return False
    return True


def is_swapped(file: TransformerFile, flat: str, module: str, shape: tuple[int, int]) -> bool:
    """Whether the layer gives scale and shift in the other order than diffusers' (see `TransformerFile`).

    `flat` is its name in the file, with underscores, `module` that in diffusers, `shape` rows and columns.
    """
    if module == file.swapped:
        return True
    is_last = flat == file.names.get(file.swapped_in_last_block, "").replace(".", "_")
    return is_last and shape[0] == 2 * shape[1]  # six times in all blocks but the last
