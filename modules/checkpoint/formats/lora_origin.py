"""Which model a LoRA file is for, from its metadata or the names in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from modules.checkpoint.formats.metadata import SDXL
from modules.checkpoint.formats.safetensors_file import SafetensorsFile
from modules.config.transformer_families import named_family

# A second text encoder, Stability AI's names, or a second layer in a transformer occur in SDXL only.
_SDXL_ONLY: Final = (
    "lora_te1_", "lora_te2_", "text_encoder_2.", "lora_unet_input_", "lora_unet_output_", "lora_unet_middle_",
    "transformer_blocks.1.", "transformer_blocks_1_", "add_embedding", "label_emb",
)  # fmt: skip
_CROSS_ATTENTION: Final = re.compile(r"attn2[._]to_[kv]\.(lora_A|lora_down)\.")
# Version 2 has a width of 1024, but its two variants (epsilon and v) cannot be distinguished by it.
ARCHITECTURE_BY_TEXT_WIDTH: Final = {768: "stable-diffusion-v1", 2048: SDXL}

# The start of modelspec.architecture -> the family.
_DECLARED: Final = {
    "stable-diffusion-xl": "stable_diffusion_xl",
    "stable-diffusion-v3": "stable_diffusion_3",
    "stable-diffusion-3": "stable_diffusion_3",
    "stable-diffusion": "stable_diffusion",
    "flux-1": "flux",
    "flux-2": "flux2",
    "flux.2": "flux2",
    "chroma": "chroma",
    "z-image": "z_image",
    "qwen-image": "qwen_image",
    "krea-2": "krea2",
    "lumina-2": "lumina2",
}
# Of families that names reveal. FLUX's variants share names; sd-scripts (library/sai_model_spec.py) declares the same.
_NAMED_ARCHITECTURES: Final = {
    "flux2": "flux-2",
    "flux": "flux-1",
    "chroma": "chroma",
    "krea2": "krea-2",
    "lumina2": "lumina-2",
    "z_image": "z-image",
    "qwen_image": "qwen-image",
    "stable_diffusion_3": "stable-diffusion-v3",
}
_UNET: Final = re.compile(r"(base_model\.model\.)?(unet\.|lora_unet_)(down|mid|up|input|output|middle)_")


def lora_architecture(file: SafetensorsFile) -> str:
    """The modelspec name of the model that a LoRA is for, declared or seen by its tensors; empty if unknown."""
    declared = file.metadata.get("modelspec.architecture", "").partition("/")[0]
    if not declared and (family := named_family(file.names)):
        return _NAMED_ARCHITECTURES.get(family, "")
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


def of_family(path: Path) -> str:
    """A clause for a message about a LoRA that does not fit its model; empty if its family is not known."""
    family = lora_family(path)
    return f" (it belongs to the family {family})" if family else ""


def family_of_architecture(architecture: str) -> str:
    """The family of models with this modelspec architecture; empty if there is none."""
    name = architecture.lower()
    return next((family for start, family in _DECLARED.items() if name.startswith(start)), "")
