"""Whether the file of a transformer holds the network of a diffusers folder, no tensor less and none more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from modules.config import ConfigError
from modules.config.transformer_families import named_family
from modules.diffusion.safetensors_reader import SafetensorsFile
from modules.diffusion.transformer_files.names import PREFIX
from modules.diffusion.transformer_files.original_name import OriginalName

SAME_ARCHITECTURE: Final = "Give the layout of a model of the same architecture."
# In a file of a whole model: these components come from the layout.
_OTHER_COMPONENTS: Final = ("vae.", "first_stage_model.", "text_encoders.", "cond_stage_model.", "conditioner.")
# In ComfyUI's file of Z-Image, from the code of Lumina 2; no network uses it, and diffusers drops it as well.
_UNUSED: Final = ("norm_final.weight",)
# ComfyUI's scaled fp8 and other quantised files: a weight is what is stored times its scale.
_SCALE: Final = re.compile(r"scale_weight|weight_scale|scale_input|input_scale|scaled_fp8|comfy_quant|absmax|quant_map")


def require_whole(
    source: SafetensorsFile, needed: Mapping[str, tuple[OriginalName, tuple[int, ...]]], layout: str
) -> None:
    """Raises ConfigError for a tensor that would be lost, or that is no plain weight.

    `needed` has the original of each tensor in diffusers, and the shape there; `layout` names the layout in messages.
    """
    names = {original.name for original, _ in needed.values()}
    for name in source.names:
        if name in names or name.removeprefix(PREFIX) in _UNUSED or name.startswith(_OTHER_COMPONENTS):
            continue
        if _SCALE.search(name):
            raise ConfigError(
                f"{str(source.path)!r} is quantised: its weights are to be multiplied by {name!r} and others.",
                "Use the file in bf16 or fp16 of the same model.",
            )
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


def of_family(source: SafetensorsFile) -> str:
    """A clause for a message about a file of another model; empty if its family is not known."""
    family = named_family(source.names)
    return f" (the file belongs to the family {family})" if family else ""
