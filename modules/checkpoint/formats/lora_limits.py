"""What other programs do not take from a LoRA file.

DoRA: ComfyUI (comfy/weight_adapter/base.py, weight_decompose) divides a magnitude per row by the row norms of the base
model's weight W, not of W + delta; A1111 (extensions-builtin/Lora/network.py, apply_weight_decompose) always divides
by the norms of columns, so no shape of `dora_scale` holds for it; diffusers drops `dora_scale`. A file that ComfyUI
would use rightly depends on its base model and would be wrong everywhere else.

Alpha: in diffusers' layout it is in the header, which ComfyUI (comfy/weight_adapter/lora.py) and Forge do not read:
without a tensor `alpha` they take 1 for alpha / rank.

In diffusers' layout ComfyUI knows no tensor of magnitudes (`lora_magnitude_vector`) and leaves them out.

Names: ComfyUI (comfy/lora.py, model_lora_keys_unet; comfy/utils.py, flux_to_diffusers, mmdit_to_diffusers,
and others there) knows diffusers' names of all layers of flow-matching transformers but a few, and those of
models that are `is_unknown_to_comfyui`; their part is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from modules.checkpoint.formats.lora_own_names import has_kohya_names
from modules.checkpoint.formats.lora_transformer import TRANSFORMER
from modules.checkpoint.formats.lora_weights import AdapterPrefixes, Layout, LoraWeights
from modules.facts import all_facts, family_of_architecture, named_family

_UNKNOWN_TO_COMFYUI: Final = re.compile(
    r"(^|\.)((double|single)_stream_modulation\w*|time_guidance_embed|distilled_guidance_layer)\."
)


def limits_of_layout(
    weights: Iterable[LoraWeights], layout: Layout, file: str, prefixes: AdapterPrefixes, architecture: str
) -> str:
    """Sentences if programs that read `layout` will use these adapters otherwise than Tandem; else empty."""
    adapters = list(weights)
    dora = any(each.magnitude is not None for each in adapters)
    if layout == "kohya":
        return dora_limits(file) if dora else ""
    factors = {each.alpha / each.rank for each in adapters}
    kohya = "its copy in the kohya layout (--to kohya)" if has_kohya_names(adapters, prefixes, architecture) else ""
    alpha = alpha_limits(file, min(factors), max(factors), kohya) if factors - {1.0} else ""
    names = name_limits(file, [each.module for each in adapters], architecture, kohya)
    is_read = dora and any(each.submodule == TRANSFORMER for each in adapters)
    return " ".join(filter(None, (alpha, names, magnitude_limits(file) if is_read else "")))


def dora_limits(file: str) -> str:
    """The sentence on DoRA in kohya's layout."""
    return (
        f"{file} is a DoRA: LyCORIS uses it as it was trained, ComfyUI and Forge somewhat differently, A1111 wrongly, "
        "and diffusers ignores its magnitudes. For these programs use a LoRA without DoRA, or merge it into the model "
        "(scripts/convert.py --merge)."
    )


def magnitude_limits(file: str) -> str:
    """The sentence on DoRA of a transformer in diffusers' layout, the rest of which ComfyUI does take."""
    return (
        f"{file} is a DoRA, which diffusers, peft and Tandem use as it was trained. ComfyUI leaves out its magnitudes: "
        "use a LoRA without DoRA there, or merge it into the model (scripts/convert.py --merge)."
    )


def alpha_limits(file: str, least: float, most: float, kohya: str = "") -> str:
    """The sentence on alpha in diffusers' layout; `least` and `most` are alpha / rank of its layers.

    `kohya` is what to use in place of the file, in kohya's layout; empty if that has no names for the layers.
    """
    factor = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
    resized = (
        "train with alpha equal to the rank, or write it again with scripts/convert.py --resize, which makes it so"
    )
    instead = f"use {kohya}, which holds alpha for each layer" if kohya else resized
    return (
        f"{file} has its alpha in the header, which diffusers, peft and Tandem read. ComfyUI and Forge do not: there "
        f"its strength is as if alpha were the rank, so set it to {factor}, or {instead}."
    )


def name_limits(file: str, modules: Sequence[str], architecture: str, kohya: str = "") -> str:
    """The sentence on layers of which ComfyUI does not know diffusers' names; empty if there are none.

    `architecture` is the model's modelspec name, "" if that is not known; `kohya` as above.
    """
    facts = all_facts().get(family_of_architecture(architecture) or named_family(modules))
    knows_none = facts is not None and facts.is_unknown_to_comfyui
    found = [module for module in modules if knows_none or _UNKNOWN_TO_COMFYUI.search(module)]
    if not found:
        return ""
    some = f"{len(found)} layers, such as {found[0]}," if len(found) > 1 else found[0]
    instead = f"Give it {kohya}" if kohya else "" if knows_none else "Train with lora_targets attention_mlp"
    merge = f"{instead}, or merge it" if instead else "Merge it"
    return (
        f"ComfyUI leaves out what {file} has for {some} whose names it does not know. {merge} into the model "
        "(scripts/convert.py --merge)."
    )


def oft_limits(file: str) -> str:
    """The sentence on OFT; ComfyUI's (comfy/weight_adapter/oft.py) rotates the rows of a weight, its outputs."""
    return (
        f"{file} is an OFT that rotates the inputs of layers: OneTrainer and Tandem read it. ComfyUI, A1111 and "
        "diffusers do not: their OFT rotates outputs, which cannot express it. For these programs merge it into the "
        "model (scripts/convert.py --merge); from the merged model --extract makes a LoRA."
    )
