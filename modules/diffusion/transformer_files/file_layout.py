"""How a transformer's file names its tensors, found by these names alone."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from modules.diffusion.transformer_files.names import PREFIX, TransformerLayout, transformer_layout
from modules.diffusion.transformer_files.original_name import ComponentConfig, OriginalName
from modules.facts import all_facts, named_family

_JOINT_BLOCK: Final = re.compile(r"joint_blocks\.(\d{1,4})\.")


class FileLayout:
    """The names in one file of a transformer."""

    def __init__(self, layout: TransformerLayout, names: Collection[str]) -> None:
        self.architecture = layout.architecture
        self._layout = layout
        self._names = frozenset(names)
        blocks = [int(found[1]) for name in names if (found := _JOINT_BLOCK.search(name))]
        self._config: ComponentConfig = {"num_layers": 1 + max(blocks, default=0)}

    def find(self, name: str) -> OriginalName | None:
        """The tensor of the file that is, or has as a part, diffusers' tensor `name`; None if there is none."""
        if name in self._names:
            return OriginalName(name)
        original = self._layout.name(name, self._config)
        if original is None:
            return None
        bare = original.name.removeprefix(PREFIX)
        stored = next((each for each in (bare, PREFIX + bare) if each in self._names), None)
        return None if stored is None else OriginalName(stored, original.form, original.part, original.is_grouped)


def layout_of_file(names: Collection[str]) -> FileLayout | None:
    """Of a transformer's file with tensors of these names; None if they are not known."""
    has_guidance = any("guidance_in." in name or "guidance_embedder." in name for name in names)
    facts = all_facts().get(named_family(names))
    layout = None if facts is None else transformer_layout(facts.transformer, {"guidance_embeds": has_guidance})
    return None if layout is None else FileLayout(layout, names)
