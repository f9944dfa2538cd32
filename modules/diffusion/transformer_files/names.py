"""The names of flow-matching transformers' tensors in the models' own code, whose files ComfyUI reads.

ComfyUI (comfy/utils.py: flux_to_diffusers, krea2_to_diffusers, z_image_to_diffusers; comfy/ldm) takes a file in its
folder diffusion_models with or without the prefix `model.diffusion_model.`; here each has the one of its published
files. The other direction is in diffusers/loaders/single_file_utils.py, against which the tests check this one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from modules.diffusion.transformer_files.original_name import ComponentConfig, NameMapper, OriginalName
from modules.facts import TransformerFile, all_facts, named_family

PREFIX: Final = "model.diffusion_model."

_BLOCK_NUMBER: Final = re.compile(r"(blocks|layers|norms|refiner)\.(\d{1,4})\.")
_JOINT_BLOCK: Final = re.compile(r"joint_blocks\.(\d{1,4})\.")
_FUSED: Final = (".qkv", ".linear1")
_PARTS: Final = {
    **{f"to_{letter}": part for part, letter in enumerate("qkv")},
    **{f"add_{letter}_proj": part for part, letter in enumerate("qkv")},
    "proj_mlp": 3,
}
_FLAT: Final = "transformer_blocks.*.scale_shift_table"


def transformer_files() -> Mapping[str, TransformerFile]:
    """How files of transformers name their tensors, by family; of models that share names, the more usual first."""
    found = {name: facts.file for name, facts in all_facts().items() if facts.file is not None}
    return dict(sorted(found.items(), key=lambda each: each[1].is_rarer))


def is_transformer_file(names: Collection[str]) -> bool:
    """Whether a file with tensors of these names is the transformer of a flow-matching model."""
    return any(prefix + file.signature in names for file in transformer_files().values() for prefix in ("", PREFIX))


@dataclass(frozen=True)
class TransformerLayout:
    """How files of a transformer's own code name its tensors."""

    architecture: str  # its modelspec name, as `Family.modelspec` has it
    name: NameMapper  # of the transformer's tensors in diffusers
    prefix: str = ""


def transformer_layout(class_name: str, config: ComponentConfig, pipeline: str = "") -> TransformerLayout | None:
    """Of the transformer of this diffusers class and config, in a pipeline of that class; None if there is none."""
    known = [facts for facts in all_facts().values() if facts.transformer == class_name and facts.file is not None]
    facts = min(known, key=lambda each: pipeline not in each.pipelines, default=None)
    if facts is None or facts.file is None:
        return None
    name = partial(_original_name, facts.file)
    return TransformerLayout(facts.architecture_of(config, pipeline), name, facts.file.prefix)


class FileLayout:
    """The names in one file of a transformer."""

    def __init__(self, layout: TransformerLayout, names: Collection[str]) -> None:
        self.architecture = layout.architecture
        self._layout = layout
        self._names = frozenset(names)
        blocks = [int(found[1]) for name in names if (found := _JOINT_BLOCK.search(name))]
        self._config: ComponentConfig = {"num_layers": 1 + max(blocks, default=0)}

    def find(self, name: str) -> OriginalName | None:
        """The tensor of the file that is, or has as a part, diffusers' tensor `name`; None if there is none."""
        if name in self._names:
            return OriginalName(name)
        original = self._layout.name(name, self._config)
        if original is None:
            return None
        bare = original.name.removeprefix(PREFIX)
        stored = next((each for each in (bare, PREFIX + bare) if each in self._names), None)
        return None if stored is None else OriginalName(stored, original.form, original.part, original.is_grouped)


def layout_of_file(names: Collection[str]) -> FileLayout | None:
    """Of a transformer's file with tensors of these names; None if they are not known."""
    has_guidance = any("guidance_in." in name or "guidance_embedder." in name for name in names)
    facts = all_facts().get(named_family(names))
    layout = None if facts is None else transformer_layout(facts.transformer, {"guidance_embeds": has_guidance})
    return None if layout is None else FileLayout(layout, names)


def _original_name(file: TransformerFile, name: str, config: ComponentConfig) -> OriginalName | None:
    found = _BLOCK_NUMBER.search(name)
    number = found[2] if found else ""
    pattern = _BLOCK_NUMBER.sub(r"\1.*.", name, count=1)
    stem, _, end = pattern.rpartition(".")
    if pattern in file.names:
        original = file.names[pattern]
    elif stem in file.names and end in ("weight", "bias"):
        original = f"{file.names[stem]}.{end}"
    else:
        return OriginalName(name) if file.keeps_other_names else None
    original = original.replace("*", number)
    if file.names.get(stem, "").endswith(_FUSED) and (part := _PARTS.get(stem.rpartition(".")[2])) is not None:
        return OriginalName(original, part=part, is_grouped=file.is_grouped)
    layers = config.get("num_layers")
    is_last = isinstance(layers, int) and number == str(layers - 1)
    if stem and (stem == file.swapped or (is_last and stem == file.swapped_in_last_block)):
        return OriginalName(original, "swapped")
    return OriginalName(original, "flat" if pattern == _FLAT else "unchanged")
