"""The files of a trained LoRA: their layouts, and what other programs will not take from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modules.checkpoint.formats import (
    Layout,
    alpha_limits,
    dora_limits,
    has_own_names,
    magnitude_limits,
    name_limits,
    oft_limits,
)
from modules.config import TrainConfig
from modules.families._family import Family
from modules.training.methods.adapter_layers import LayerSize, adapter_sizes
from modules.training.methods.lora import target_sizes
from modules.training.methods.submodules import freeze_untrained

# By layout; the first is the name that diffusers expects in a folder.
LORA_FILES: Final[Mapping[Layout, str]] = {
    "diffusers": "pytorch_lora_weights.safetensors",
    "kohya": "lora_kohya.safetensors",
}


def file_limits(family: Family, config: TrainConfig) -> list[str]:
    """What other programs will not take from the files that the run saves: a sentence for each of them."""
    if config.method != "lora" or not family.adapter_prefixes:
        return []
    model = getattr(family.model, "module", family.model)  # DDP's wrapper is no part of a name
    has_magnitudes = any(".lora_magnitude_vector." in name for name, _ in model.named_parameters())
    return _limits(family, config, adapter_sizes(model), dora=has_magnitudes)


def expected_file_limits(kind: type[Family], config: TrainConfig) -> list[str]:
    """As `file_limits`, before the model is loaded; empty if its layers are not known yet."""
    is_known = config.method == "lora" and bool(kind.adapter_prefixes) and config.lora_from is None
    model = kind.meta_model(config) if is_known else None
    if model is None:
        return []
    freeze_untrained(model, kind.submodules, config)
    sizes = target_sizes(model, kind, config)
    return _limits(kind, config, sizes, dora=config.lora_weight_decompose)


def _limits(
    family: Family | type[Family], config: TrainConfig, sizes: Mapping[str, LayerSize], *, dora: bool
) -> list[str]:
    """`sizes` of the adapted layers, by their names in the model."""
    written = layouts(family, config)
    if config.lora_algorithm == "oft":
        return [oft_limits(LORA_FILES[written[0]])]
    kohya = ""
    if config.lora_algorithm == "lora" and has_kohya_names(family):
        kohya = LORA_FILES["kohya"] + ("" if "kohya" in written else " (lora_layouts both writes it)")
    is_transformer = "transformer" in family.adapter_prefixes
    known = family.facts.architecture if is_transformer else ""
    unknown = name_limits(LORA_FILES["diffusers"], list(sizes), known, kohya)
    found = [unknown] if "diffusers" in written and unknown else []
    if config.lora_algorithm != "lora":
        return found
    if "kohya" in written and dora:
        found.append(dora_limits(LORA_FILES["kohya"]))
    if "diffusers" in written and dora and is_transformer:
        found.append(magnitude_limits(LORA_FILES["diffusers"]))
    factors = {size.alpha / size.rank for size in sizes.values()}
    if "diffusers" in written and factors - {1.0}:
        found.append(alpha_limits(LORA_FILES["diffusers"], min(factors), max(factors), kohya))
    return found


def layouts(family: Family | type[Family], config: TrainConfig) -> list[Layout]:
    """The layouts to write; kohya's exists only for families that declare their prefixes."""
    if config.lora_algorithm != "lora":  # which diffusers does not read
        return ["kohya"] if has_lycoris_names(family) else ["diffusers"]
    known: list[Layout] = ["diffusers", "kohya"] if has_kohya_names(family) else ["diffusers"]
    return [layout for layout in known if config.lora_layouts in (layout, "both")]


def has_kohya_names(family: Family | type[Family]) -> bool:
    """Whether kohya's layout has names for the layers of the family's models, transformers in their own code.

    Of a family that is not Tandem's own, whose code has no table of names, there are none.
    """
    if has_lycoris_names(family) or "transformer" not in family.adapter_prefixes:
        return has_lycoris_names(family)
    return has_own_names(family.facts.architecture)


def has_lycoris_names(family: Family | type[Family]) -> bool:
    """Whether LoHa, LoKr and OFT get kohya's names. Of transformers they keep diffusers', which ComfyUI knows, too: in
    the models' own code some layers are one, and so would be several adapters.
    """
    return any(kohya for _, kohya in family.adapter_prefixes.values())
