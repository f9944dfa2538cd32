"""Models by short names, as people know them from other trainers; any other is named by its folder or on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from modules.annotation.proposals import Task

KNOWN_MODELS: Final[Mapping[Task, Mapping[str, str]]] = MappingProxyType(
    {
        "caption": {
            "blip": "Salesforce/blip-image-captioning-large",
            "blip2": "Salesforce/blip2-opt-2.7b",
            "florence2": "florence-community/Florence-2-large",
            "joycaption": "fancyfeast/llama-joycaption-beta-one-hf-llava",
        },
        "tag": {
            "wd14": "SmilingWolf/wd-v1-4-vit-tagger-v2",
            "wd-swinv2": "SmilingWolf/wd-swinv2-tagger-v3",
            "wd-eva02": "SmilingWolf/wd-eva02-large-tagger-v3",
        },
        "mask": {"clipseg": "CIDAS/clipseg-rd64-refined"},
    }
)
DEFAULT_MODELS: Final[Mapping[Task, str]] = MappingProxyType({"caption": "blip", "tag": "wd-swinv2", "mask": "clipseg"})


def model_name(task: Task, name: str) -> str:
    """The folder or hub name that a short name stands for; others as they are."""
    return KNOWN_MODELS[task].get(name, name)
