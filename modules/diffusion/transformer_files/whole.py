"""Which tensors of a single file are those of a network in diffusers, and whether a transformer's file has them all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from modules.config import ConfigError
from modules.diffusion.model_files.tensor_file import TensorFile
from modules.diffusion.transformer_files.original_name import ComponentConfig, NameMapper, OriginalName
from modules.diffusion.transformer_files.tensor_forms import is_of_shape, original_shape
from modules.facts import file_prefix, named_family

SAME_ARCHITECTURE: Final = "Give the layout of a model of the same architecture."
# In a file of a whole model: these components come from the layout.
_OTHER_COMPONENTS: Final = ("vae.", "first_stage_model.", "text_encoders.", "cond_stage_model.", "conditioner.")
# In files of ComfyUI: left over from another model's code, and an empty mark. No network uses them, and diffusers drops
# the first as well.
_UNUSED: Final = ("norm_final.weight", "__index_timestep_zero__")
# Of quantised files that ScaledFile does not read, such as bitsandbytes': a weight is what is stored times its scale.
_SCALE: Final = re.compile(
    r"scale_weight|weight_scale|scale_input|input_scale|scaled_fp8|comfy_quant|absmax|quant_map|\.SCB$"
)


@dataclass(frozen=True)
class Network:
    """A component of a model folder, whose tensors are looked for in a single file."""

    component: str
    config: ComponentConfig
    shapes: Mapping[str, tuple[int, ...]]  # of its tensors, by their names in diffusers
    pipeline: str  # the class of the folder's pipeline
    layout: str  # the folder, as in messages

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.component} of the layout {self.layout!r}"


def find_originals(
    source: TensorFile, network: Network, mapper: NameMapper
) -> dict[str, tuple[OriginalName, tuple[int, ...]]]:
    """By the names in diffusers, the tensors of the file and the shapes in diffusers.

    A transformer's file may have diffusers' own names, too. Raises ConfigError if a tensor is missing or has another
    shape; of a transformer, also if the file has more, or is quantised.
    """
    own = set(source.names)
    is_transformer = network.component == "transformer"
    prefix = file_prefix(own) if is_transformer else ""
    if is_transformer:
        require_unscaled(source)
    needed: dict[str, tuple[OriginalName, tuple[int, ...]]] = {}
    has_own_names = is_transformer and all(prefix + name in own for name in network.shapes)
    for name, shape in network.shapes.items():
        original = OriginalName(name) if has_own_names else mapper(name, network.config)
        if original is not None and is_transformer:
            original = replace(original, name=prefix + original.name.removeprefix(file_prefix([original.name])))
        if original is None or original.name not in own:
            missing = name if original is None else original.name
            what = "the transformer of a model" if is_transformer else "a whole model"
            raise ConfigError(
                f"{str(source.path)!r} has no {missing!r}, which {network.component} of a {network.pipeline} needs"
                f"{of_family(source)}.",
                f"Is it {what} of the same architecture as the layout?",
            )
        stored = source.shape(original.name)
        if not is_of_shape(original, shape, stored):
            wanted = [*original_shape(original, shape)] if original.part is None else f"{[*shape]} as a part of it"
            raise ConfigError(
                f"{str(source.path)!r}: {original.name!r} has the shape {list(stored)}, but {network.place} requires "
                f"{wanted}.",
                SAME_ARCHITECTURE,
            )
        needed[name] = (original, shape)
    if is_transformer:
        _require_whole(source, needed, network.place, prefix)
    return needed


def _require_whole(
    source: TensorFile, needed: Mapping[str, tuple[OriginalName, tuple[int, ...]]], layout: str, prefix: str
) -> None:
    """Raises ConfigError for a tensor that would be lost, or that is no plain weight.

    `needed` has the original of each tensor in diffusers, and the shape there; `layout` names the layout in messages;
    `prefix` is before all names of the file.
    """
    names = {original.name for original, _ in needed.values()}
    for name in source.names:
        if name in names or name.removeprefix(prefix) in _UNUSED or name.startswith(_OTHER_COMPONENTS):
            continue
        raise ConfigError(
            f"{str(source.path)!r} has {name!r}, for which {layout} has no place{of_family(source)}.",
            SAME_ARCHITECTURE,
        )
    rows: dict[str, int] = {}
    for original, shape in needed.values():
        if not source.stored_dtype(original.name).is_floating_point:
            raise ConfigError(
                f"{str(source.path)!r}: {original.name!r} is of whole numbers, so the file is quantised.",
                "Use the file in bf16 or fp16 of the same model.",
            )
        if original.part is not None:
            rows[original.name] = rows.get(original.name, 0) + shape[0]
    for name, count in rows.items():
        if source.shape(name)[0] != count:
            raise ConfigError(
                f"{str(source.path)!r}: {name!r} has {source.shape(name)[0]} rows, but {layout} requires {count}.",
                SAME_ARCHITECTURE,
            )


def require_unscaled(source: TensorFile) -> None:
    """Raises ConfigError for a quantised file, in which a weight is what is stored times its scale."""
    own = (name for name in source.names if not name.startswith(_OTHER_COMPONENTS))
    if scale := next((name for name in own if _SCALE.search(name)), None):
        raise ConfigError(
            f"{str(source.path)!r} is quantised: its weights are to be multiplied by {scale!r} and others.",
            "Use the file in bf16 or fp16 of the same model, which a run keeps in 4 or 8 bits with parts.0.weights nf4 "
            "or int8.",
        )


def of_family(source: TensorFile) -> str:
    """A clause for a message about a file of another model; empty if its family is not known."""
    family = named_family(source.names)
    return f" (the file belongs to the family {family})" if family else ""
