"""What a base model is."""

from __future__ import annotations

from typing import Final

MODEL_FOLDER: Final = "{kind}, with {parts}."
MODEL_FILE: Final = "{kind}, {count:,} tensors."
MODEL_UNKNOWN_KIND: Final = "A model of a kind that is not known here"
MODEL_OF_HUB: Final = "Looks like a model on the hub; {name} is fetched when training starts."
MODEL_MISSING: Final = "There is no folder or file {name}, and it is no hub id (owner/name)."
MODEL_NO_INDEX: Final = "This folder has no model_index.json, so it is no model in the diffusers format."
MODEL_BAD_INDEX: Final = "{file} cannot be read; copy the model again."
MODEL_INCOMPLETE: Final = "{kind}, but parts are missing or incomplete: {parts}."
MODEL_PICKLE: Final = "{file} is a pickle, which can run code when it is opened: convert it to .safetensors first."
MODEL_WRONG_FILE: Final = "{file} is no model: choose a .safetensors file, a diffusers folder or a hub id."
MODEL_CUT_OFF: Final = "{file} is cut off or damaged: copy or download it again."
MODEL_IS_LORA: Final = "{file} is a LoRA, which stands beside a base model and is none itself."
MODEL_UNREADABLE: Final = "{file} cannot be read: {reason}."
