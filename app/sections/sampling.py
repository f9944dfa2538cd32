"""Test pictures while training."""

from __future__ import annotations

from app import texts
from app.form.build import Card
from app.form.item_list import Kind
from app.form.item_row import Item
from app.form.words import as_text
from app.sections.form_section import FormSection, first_line


class Section(FormSection):
    """The samples, and how often they are drawn."""

    name = "sampling"
    declared_in = ("Sampling",)
    item_cards = (
        Card(texts.CARD_THIS_SAMPLE, ("prompt", "negative_prompt", "enabled"), 1),
        Card(texts.CARD_HOW_IT_IS_DRAWN, ("width", "height", "steps", "guidance_scale", "seed"), 1),
    )
    cards = (Card(texts.CARD_WHEN, ("sample_every",), 0),)

    def build(self) -> None:
        self.list = self.add_list(Kind("samples", "enabled", describe), self.item_cards)
        super().build()


def describe(sample: dict[str, object]) -> Item:
    """A sample in the list."""
    width, height = sample.get("width"), sample.get("height")
    size = f"{texts.PICTURE_SIZE.format(width=width, height=height)}  ·  " if width and height else ""
    drawn = texts.SAMPLE_DRAWN.format(steps=as_text(sample.get("steps")), seed=as_text(sample.get("seed")))
    return Item(first_line(sample.get("prompt"), texts.LIST_UNNAMED["samples"]), f"{size}{drawn}")
