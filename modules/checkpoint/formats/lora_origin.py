"""Which model a LoRA file is for, from its metadata or the names in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from modules.checkpoint.formats.metadata import SDXL
from modules.checkpoint.formats.safetensors_file import SafetensorsFile
from modules.facts import all_facts, family_of_architecture, named_family

# A second text encoder, Stability AI's names, or a second layer in a transformer occur in SDXL only.
_SDXL_ONLY: Final = (
    "lora_te1_", "lora_te2_", "text_encoder_2.", "lora_unet_input_", "lora_unet_output_", "lora_unet_middle_",
    "transformer_blocks.1.", "transformer_blocks_1_", "add_embedding", "label_emb",
)  # fmt: skip
_CROSS_ATTENTION: Final = re.compile(r"attn2[._]to_[kv]\.(lora_A|lora_down)\.")
# Version 2 has a width of 1024, but its two variants (epsilon and v) cannot be distinguished by it.
ARCHITECTURE_BY_TEXT_WIDTH: Final = {768: "stable-diffusion-v1", 2048: SDXL}

_UNET: Final = re.compile(r"(base_model\.model\.)?(unet\.|lora_unet_)(down|mid|up|input|output|middle)_")


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


def of_family(path: Path) -> str:
    """A clause for a message about a LoRA that does not fit its model; empty if its family is not known."""
    family = lora_family(path)
    return f" (it belongs to the family {family})" if family else ""
