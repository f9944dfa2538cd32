"""LoRAs of flow-matching transformers written in kohya's layout, with the names of the models' own code.

ComfyUI takes `lora_unet_` and the name of any layer with underscores for its dots (comfy/lora.py,
model_lora_keys_unet), which is what kohya-ss/sd-scripts write (networks/lora_flux.py, lora_sd3.py, lora_lumina.py).
Where that code has one layer for several of diffusers', such as query, key and value, their matrices become one pair:
`down` stacked, `up` block by block on the diagonal, as `LoRANetwork.state_dict` of lora_flux.py does for `split_qkv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from modules.checkpoint.formats.lora_transformer import TRANSFORMER, is_swapped
from modules.checkpoint.formats.lora_weights import AdapterPrefixes, AdapterWeights, LoraWeights
from modules.checkpoint.formats.safetensors_file import LazyTensor, lazy_tensor
from modules.config import ConfigError
from modules.diffusion.transformer_files.names import transformer_files
from modules.facts import TransformerFile, family_of_architecture

_NUMBER: Final = re.compile(r"(blocks|layers|norms|refiner)\.(\d{1,4})\.")
_PREFIX: Final = "lora_unet_"


@dataclass(frozen=True)
class _Layer:
    """A layer of the model's own code, and the adapters of the layers in diffusers that it consists of."""

    file: TransformerFile
    name: str  # with the number of its block
    pattern: str  # with * for it
    parts: Sequence[LoraWeights | None]  # None for one without an adapter
    known_rows: Sequence[int | None]  # of these parts in the model, None if that is not at hand

    @property
    def adapters(self) -> list[LoraWeights]:
        return [part for part in self.parts if part is not None]

    @property
    def columns(self) -> int:
        return self.adapters[0].matrix_shape[1]

    def rows(self) -> list[int]:
        """Of each part. Raises ConfigError if that of one without an adapter is not known."""
        known = [
            rows if part is None else part.matrix_shape[0]
            for part, rows in zip(self.parts, self.known_rows, strict=True)
        ]
        if self.adapters[0].magnitude is None or None not in self.parts:
            whole = [rows for rows in known if rows is not None]
            if len(whole) == len(known):
                return whole
        if len(known) == 4:  # query, key and value as wide as the model, and an MLP's first layer
            return [self.columns] * 3 + [self.file.mlp_rows * self.columns]
        if self.file.is_grouped or self.adapters[0].magnitude is not None:
            raise ConfigError(
                f"lora_layouts: kohya's layout has one layer {self.name!r} for query, key and value, and this LoRA "
                f"changes only some of them{' as a DoRA' if self.adapters[0].magnitude is not None else ''}.",
                "Choose only the layout diffusers, or train all three (lora_targets attention).",
            )
        return [self.adapters[0].matrix_shape[0]] * len(known)


def own_family(adapters: Iterable[AdapterWeights], architecture: str) -> str:
    """The family in whose own code all adapted layers have names; empty if there is none.

    `architecture` is its modelspec name; without it, families that would give the layers other names exclude each
    other, as the attention layers of several have the same names in diffusers.
    """
    patterns = sorted({_pattern(one.module)[0] for one in adapters if one.submodule == TRANSFORMER})
    declared = family_of_architecture(architecture)
    files = transformer_files()
    fitting = [
        family
        for family, file in files.items()
        if patterns and declared in ("", family) and all(each in file.names for each in patterns)
    ]
    names = {tuple(files[family].names[each] for each in patterns) for family in fitting}
    return fitting[0] if len(names) == 1 else ""


def has_own_names(architecture: str) -> bool:
    """Whether the layers of transformers of this modelspec architecture have names in their own code that are known."""
    return family_of_architecture(architecture) in transformer_files()


def has_kohya_names(adapters: Iterable[AdapterWeights], prefixes: AdapterPrefixes, architecture: str) -> bool:
    """Whether kohya's layout has names for these, by the prefixes of submodules or in the model's own code."""
    found = list(adapters)
    return all(prefixes[one.submodule][1] for one in found) or bool(own_family(found, architecture))


def own_tensors(
    adapters: Sequence[LoraWeights], architecture: str, dtype: torch.dtype, rows: Mapping[str, int] | None = None
) -> dict[str, LazyTensor]:
    """The tensors of a file, for a model of this modelspec architecture.

    `rows` are the outputs of the model's layers by their names in diffusers, if the model is at hand: of layers that
    have no adapter but are one with such that have one.

    Raises ConfigError if the layout cannot name a module or hold what is adapted of it.
    """
    family = own_family(adapters, architecture)
    if not family:
        raise ConfigError(
            "lora_layouts: not all layers of this LoRA have names in kohya's layout.",
            "Choose only the layout diffusers.",
        )
    tensors = {}
    for layer in _layers(transformer_files()[family], adapters, rows or {}):
        down, up, alpha, magnitude = _joined(layer)
        stem = _PREFIX + layer.name.replace(".", "_")
        tensors[f"{stem}.lora_down.weight"] = lazy_tensor(down, dtype)
        tensors[f"{stem}.lora_up.weight"] = lazy_tensor(up, dtype)
        tensors[f"{stem}.alpha"] = lazy_tensor(torch.tensor(float(alpha)), torch.float32)
        if magnitude is not None:
            tensors[f"{stem}.dora_scale"] = lazy_tensor(magnitude.reshape(-1, *[1] * (down.dim() - 1)), dtype)
    return tensors


def _pattern(module: str) -> tuple[str, str]:
    """The module as in the tables, and the number of its block."""
    number = _NUMBER.search(module)
    return _NUMBER.sub(r"\1.*.", module, count=1), number[2] if number else ""


def _layers(file: TransformerFile, adapters: Sequence[LoraWeights], rows: Mapping[str, int]) -> list[_Layer]:
    members: dict[str, list[str]] = {}
    for ours, theirs in file.names.items():
        members.setdefault(theirs, []).append(ours)
    found: dict[tuple[str, str], dict[str, LoraWeights]] = {}
    for one in adapters:
        pattern, number = _pattern(one.module)
        found.setdefault((file.names[pattern], number), {})[pattern] = one
    return [
        _Layer(
            file,
            theirs.replace("*", number),
            theirs,
            [parts.get(each) for each in members[theirs]],
            [rows.get(each.replace("*", number)) for each in members[theirs]],
        )
        for (theirs, number), parts in found.items()
    ]


def _joined(layer: _Layer) -> tuple[Tensor, Tensor, float, Tensor | None]:
    """`down`, `up`, alpha and DoRA's magnitude of the whole layer."""
    adapters, rows = layer.adapters, layer.rows()
    first = adapters[0]
    scale = first.alpha / first.rank
    magnitude = None if first.magnitude is None else torch.cat([_magnitude(one) for one in adapters])
    if len(layer.parts) == 1:
        down, up, alpha = first.down, first.up, first.alpha
    elif len(adapters) == len(rows) and all(_has_same_down(one, first) for one in adapters):
        down, up, alpha = first.down, torch.cat([one.up for one in adapters]), first.alpha
    else:
        down = torch.cat([one.down for one in adapters])
        blocks = [
            first.up.new_zeros(count, 0) if one is None else one.up * (one.alpha / one.rank / scale)
            for one, count in zip(layer.parts, rows, strict=True)
        ]
        up, alpha = torch.block_diag(*blocks), scale * len(down)
    if is_swapped(layer.file, layer.pattern.replace(".", "_"), first.module, (len(up), layer.columns)):
        up = torch.cat(up.chunk(2)[::-1])
        magnitude = None if magnitude is None else torch.cat(magnitude.chunk(2)[::-1])
    return down, up, alpha, magnitude


def _has_same_down(one: LoraWeights, other: LoraWeights) -> bool:
    if one.down.is_meta:  # --dry_run asks for names, not for values
        return False
    return one.alpha == other.alpha and one.down.shape == other.down.shape and bool(torch.equal(one.down, other.down))


def _magnitude(one: LoraWeights) -> Tensor:
    assert one.magnitude is not None, "DoRA is for all layers or for none"
    return one.magnitude
