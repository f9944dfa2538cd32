"""Test pictures while training."""

from __future__ import annotations

from app.form.build import Card
from app.form.words import as_text
from app.sections.list_section import ListSection, first_line, unnamed


class Section(ListSection):
    """The samples, and how often they are drawn."""

    name = "sampling"
    declared_in = ("Sampling",)
    list_path = "samples"
    list_title = "Samples"
    item_cards = (
        Card("This sample", ("prompt", "negative_prompt", "enabled"), 1),
        Card("How it is drawn", ("width", "height", "steps", "guidance_scale", "seed"), 1),
    )
    cards = (Card("When", ("sample_every",), 0),)

    def describe(self, item: dict[str, object]) -> tuple[str, str]:
        size = f"{item.get('width')} × {item.get('height')}  ·  " if item.get("width") and item.get("height") else ""
        steps, seed = as_text(item.get("steps")), as_text(item.get("seed"))
        return first_line(item.get("prompt"), unnamed("samples")), f"{size}{steps} steps  ·  seed {seed}"
