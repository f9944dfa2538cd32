"""Which model a LoRA file is for, from its metadata or the names in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from modules.checkpoint.formats.metadata import SDXL
from modules.checkpoint.formats.safetensors_file import SafetensorsFile
from modules.config import ConfigError
from modules.facts import all_facts, family_of_architecture, named_family, whole_models

# A second text encoder, Stability AI's names, or a second layer in a transformer occur in SDXL only.
_SDXL_ONLY: Final = (
    "lora_te1_", "lora_te2_", "text_encoder_2.", "text_encoders.clip_g.", "lora_unet_input_", "lora_unet_output_",
    "lora_unet_middle_", "transformer_blocks.1.", "transformer_blocks_1_", "add_embedding", "label_emb",
)  # fmt: skip
_CROSS_ATTENTION: Final = re.compile(r"attn2[._]to_[kv]\.(lora_A|lora_down)\.")
# Version 2 has a width of 1024, but its two variants (epsilon and v) cannot be distinguished by it.
ARCHITECTURE_BY_TEXT_WIDTH: Final = {768: "stable-diffusion-v1", 2048: SDXL}

_UNET: Final = re.compile(
    r"(base_model\.model\.)?(unet\.|lora_unet_|lycoris_|(model\.)?diffusion_model\.)(down|mid|up|input|output|middle)_"
)
_LAYERS: Final = re.compile(
    r"conv_in|conv_out|(time|add)_embedding\.linear_[12]|(mid_block|(down|up)_blocks\.\d+)\."
    r"(resnets\.\d+\.(conv1|conv2|conv_shortcut|time_emb_proj)|(down|up)samplers\.\d+\.conv|attentions\.\d+\.(proj_in|"
    r"proj_out|transformer_blocks\.\d+\.(attn[12]\.(to_[qkv]|to_out\.0)|ff\.net\.(0\.proj|2))))"
    r"|(text_model\.)?(encoder\.layers\.\d+\.(self_attn|mlp)|embeddings)\.\w+|text_projection"
)
# Of models that Tandem does not train, by layers in their LoRAs with dots as underscores: sd-scripts 48d368f
# (networks/lora_anima.py, lora_hunyuan_image.py), diffusers 0.42 (loaders/lora_conversion_utils.py), OneTrainer 23df383
_OTHER_MODELS: Final = {
    "Anima or Cosmos Predict": (
        r"adaln_modulation_(self_attn|cross_attn|mlp)|llm_adapter|_mlp_layer[12]_|cross_attn_output_proj"
    ),
    "HunyuanVideo or HunyuanImage": r"(img|txt)_mlp_fc[12]|individual_token_refiner|token_refiner_refiner_blocks",
    "OmniGen2": r"ref_image_refiner",
    "HiDream": r"(double|single)_stream_blocks",
    "AuraFlow": r"joint_transformer_blocks",
    "Stable Cascade": r"lora_prior_unet",
    "AnimateDiff": r"motion_modules",
    "LTX-Video, PixArt, Sana, CogVideoX or CogView": (
        r"(^|(unet|transformer|model|lycoris)_)transformer_blocks_\d+_attn[12]_to_"
    ),
}


def lora_architecture(file: SafetensorsFile) -> str:
    """The modelspec name of the model that a LoRA is for, declared or seen by its tensors; empty if unknown."""
    declared = file.metadata.get("modelspec.architecture", "").partition("/")[0]
    if not declared and (family := named_family(file.names)):
        facts = all_facts().get(family)
        return "" if facts is None else next(iter(facts.architectures), "")
    if declared or any(word in name for name in file.names for word in _SDXL_ONLY):
        return declared or SDXL
    widths = (file.shape(name)[-1] for name in file.names if _CROSS_ATTENTION.search(name))
    return ARCHITECTURE_BY_TEXT_WIDTH.get(next(widths, 0), "")


def lora_family(path: Path) -> str:
    """The family whose models a LoRA is for; empty if neither its metadata nor its names tell."""
    with SafetensorsFile(path) as file:
        if declared := family_of_architecture(file.metadata.get("modelspec.architecture", "")):
            return declared
        if named := named_family(file.names):
            return named
        is_unet = any(_UNET.match(name) for name in file.names)
        return family_of_architecture(lora_architecture(file)) if is_unet else ""


def is_of_transformer(names: Collection[str]) -> bool:
    """Whether layers of these names are those of a flow-matching transformer."""
    return any(
        family in all_facts() and all_facts()[family].file is not None for family in named_family(names).split(" or ")
    )


def check_known_layers(path: Path, modules: Iterable[str]) -> None:
    """Raises ConfigError if one of the `modules`, read from kohya's names, is no layer of a UNet or of CLIP.

    Those names have underscores for dots, so only names of models that are known can be read back.
    """
    unknown = next((module.replace(".", "_") for module in modules if not _LAYERS.fullmatch(module)), None)
    if unknown is None:
        return
    with SafetensorsFile(path) as file:
        flat = {name.replace(".", "_"): name for name in file.names}
    like = _other_model(file.names)
    known = list(dict.fromkeys(model.title for model in whole_models().values()))
    known += [name for name, facts in all_facts().items() if facts.file is not None]
    raise ConfigError(
        f"{str(path)!r} is a LoRA of a model that Tandem does not know{f' (it looks like {like})' if like else ''}: "
        f"{next((flat[name] for name in flat if unknown in name), unknown)!r} is of no layer of "
        f"{', '.join(known[:-1])} or {known[-1]}.",
        "Use it as it is, in the program that it was made for.",
    )


def _other_model(names: Iterable[str]) -> str:
    """The model that Tandem does not train and whose layers have such names; empty if none is known."""
    flat = [name.removeprefix("transformer.").replace(".", "_") for name in names]
    return next((model for model, layer in _OTHER_MODELS.items() if any(map(re.compile(layer).search, flat))), "")


def of_family(path: Path) -> str:
    """A clause for a message about a LoRA that does not fit its model; empty if its family is not known."""
    with SafetensorsFile(path) as file:
        if other := _other_model(file.names):
            return f" (it looks like {other})"
    family = lora_family(path)
    return f" (it belongs to the family {family})" if family else ""
