"""Which parts of the model are trained, and the LoRA or the new word that is trained beside it."""

from __future__ import annotations

import tkinter as tk

from app import texts
from app.form.build import Card
from app.form.field import Field
from app.form.item_list import Kind
from app.form.item_row import Item
from app.form.part import PartField
from app.form.words import as_text
from app.sections.form_section import FormSection, first_line
from app.state import AppState
from modules.config import Option


class Section(FormSection):
    """The list of parts, and the settings of each method."""

    name = "adapters"
    declared_in = ("Adapters",)
    item_cards = (Card(texts.CARD_THIS_PART, ("part", "train", "learning_rate", "stop_after", "weights"), 1),)
    cards = (
        Card(
            texts.CARD_LORA,
            ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_weight_decompose"),
            1,
        ),
        Card(texts.CARD_NEW_WORD, ("embedding_token", "embedding_init", "embedding_vectors"), 1),
    )

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state)
        state.subscribe("family", self._changed, self)

    def build(self) -> None:
        self.list = self.add_list(Kind("parts", "train", describe, fill=self._fill), self.item_cards)
        super().build()

    def kind_of(self, option: Option) -> type[Field]:
        return PartField if option.path == "parts.*.part" else super().kind_of(option)

    def refresh(self) -> None:
        family = self.state.family.described
        has_none = family is not None and not family.parts
        none = texts.PARTS_NONE.format(name=self.state.family.asked)
        self.list.offer(none if has_none else texts.LIST_EMPTY["parts"], can_add=not has_none)
        super().refresh()

    def _fill(self, part: dict[str, object]) -> dict[str, object]:
        """A fresh part is the first of the family's that is not in the list."""
        family = self.state.family.described
        listed = [each.get("part") for each in self.list.items]
        free = [name for name in (family.parts if family else ()) if name not in listed]
        return {**part, "part": free[0]} if free else part


def describe(part: dict[str, object]) -> Item:
    """A part in the list."""
    rate = part.get("learning_rate")
    own = texts.PART_RATE.format(rate=as_text(rate)) if rate else texts.PART_RUNS_RATE
    stop = part.get("stop_after")
    until = "" if stop in (None, "never") else f"  ·  {texts.PART_UNTIL.format(interval=stop)}"
    return Item(first_line(part.get("part"), texts.LIST_UNNAMED["parts"]), f"{own}{until}")
