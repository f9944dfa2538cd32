"""Which flow-matching model a LoRA or a transformer's file is of, from the names and shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest

from modules.facts import Shapes, all_facts


def named_family(names: Iterable[str]) -> str:
    """The family that the layers in a LoRA or a transformer's file show, "A or B" if two share them; else empty."""
    flat = [name.replace(".", "_") for name in names]
    known = all_facts().items()
    for patterns in zip_longest(*(facts.layers for _, facts in known), fillvalue=""):
        found = [
            family
            for (family, _), pattern in zip(known, patterns, strict=True)
            if pattern and any(map(re.compile(pattern).search, flat))
        ]
        if found:
            return " or ".join(found)
    return ""


def hub_model_of(shapes: Shapes, file_name: str) -> str:
    """The model on the hub that a transformer's file lacks only the transformer of; empty if none is known.

    `shapes` are those of its tensors. Models whose transformers have the same shapes are told apart by the file's name.
    """
    facts = all_facts().get(named_family(shapes))
    return "" if facts is None or facts.hub_model_of is None else facts.hub_model_of(shapes, file_name.lower())
