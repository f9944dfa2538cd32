"""Which parts of the model are trained, and the LoRA or the new word that is trained beside it."""

from __future__ import annotations

from app import texts
from app.form.build import Card
from app.form.item_list import Kind
from app.form.item_row import Item
from app.form.words import as_text
from app.sections.form_section import FormSection, first_line


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

    def build(self) -> None:
        self.list = self.add_list(Kind("parts", "train", describe), self.item_cards)
        super().build()


def describe(part: dict[str, object]) -> Item:
    """A part in the list."""
    rate = part.get("learning_rate")
    own = texts.PART_RATE.format(rate=as_text(rate)) if rate else texts.PART_RUNS_RATE
    stop = part.get("stop_after")
    until = "" if stop in (None, "never") else f"  ·  {texts.PART_UNTIL.format(interval=stop)}"
    return Item(first_line(part.get("part"), texts.LIST_UNNAMED["parts"]), f"{own}{until}")
