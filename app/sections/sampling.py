"""Sample images during training."""

from __future__ import annotations

from app.form.cards import Card
from app.form.item_list import ItemListSpec
from app.form.item_row import ItemContent
from app.form.setting_text import format_value
from app.sections.form_section import FormSection, first_line

EMPTY = "No samples yet.\nSamples show what the model can generate during training."


class Section(FormSection):
    """The sample prompts, and how often images are generated."""

    name = "sampling"
    declared_in = ("Sampling",)
    item_cards = (
        Card("This sample", ("prompt", "negative_prompt", "enabled"), 1),
        Card("Generation", ("width", "height", "steps", "guidance_scale", "seed"), 1),
    )
    cards = (Card("Interval", ("sample_every",), 0),)

    def build(self) -> None:
        self.list = self.add_list(
            ItemListSpec("samples", "enabled", "Samples", "Add a sample", EMPTY, describe), self.item_cards
        )
        super().build()


def describe(sample: dict[str, object]) -> ItemContent:
    """The text of a sample in the list."""
    width, height = sample.get("width"), sample.get("height")
    size = f"{width} × {height}  ·  " if width and height else ""
    settings = f"{format_value(sample.get('steps'))} steps  ·  seed {format_value(sample.get('seed'))}"
    return ItemContent(first_line(sample.get("prompt"), "no prompt yet"), f"{size}{settings}")
