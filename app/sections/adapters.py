"""Which submodules are trained, and the settings of LoRA and textual inversion."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Mapping
from functools import partial

from app.family_declaration import FamilyDeclaration
from app.form.cards import Card
from app.form.choice_fields import TargetsField
from app.form.family_fields import SubmoduleField, part_title
from app.form.field import Field
from app.form.item_list import ItemListSpec
from app.form.item_row import ItemContent
from app.form.setting_text import format_value
from app.form.text_fields import NumberField
from app.sections.form_section import FormSection
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, card, text, wrap_within
from modules.config import Option
from modules.config.family_about import FamilyAbout, family_about


class AlphaField(NumberField):
    """LoRA alpha, with what other programs make of it."""

    def refresh(self) -> None:
        super().refresh()
        self.note(alpha_note(self.state.draft.merged_data), theme.MUTED)


FIELD_CLASSES: dict[str, type[Field]] = {
    "parts.*.part": SubmoduleField,
    "lora_targets": TargetsField,
    "lora_alpha": AlphaField,
}
_WITH_SETTINGS = {"lora": "LoRA", "embedding": "Textual inversion"}  # methods
EMPTY = "No submodules listed: the family's main submodule is trained."


class Section(FormSection):
    """The list of submodules, and the settings of each method."""

    name = "adapters"
    declared_in = ("Adapters",)
    masters = ("method=lora", "method=embedding")
    items = "parts"
    item_cards = (Card("This submodule", ("part", "train", "learning_rate", "stop_after", "weights"), 1),)
    cards = (
        Card(
            "LoRA",
            (
                *("lora_algorithm", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
                *("lora_conv_rank", "lora_conv_alpha", "lora_rank_pattern", "lora_alpha_pattern"),
                *("lora_rank_stabilized", "lora_weight_decompose", "lora_plus_ratio"),
                *("lokr_factor", "oft_block_size", "lora_from", "lora_from_skip_unread", "training_adapter"),
            ),
            1,
        ),
        Card("Textual inversion", ("embedding_token", "embedding_init", "embedding_vectors"), 1),
    )

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state)
        state.subscribe("family", self._changed, self)

    def build(self) -> None:
        self.list = self.add_list(
            ItemListSpec(self.items, "train", "Submodules", "Add a submodule", EMPTY, describe, fill=self._fill)
        )
        super().build()
        self._other = card(self.scroll.inside)
        self._told = text(self._other, "")
        wrap_within(self._told, self._other)
        self._told.pack(padx=theme.px(16), pady=theme.px(14), anchor="w")
        method = partial(self.state.jump_to, "method")
        choose = Button(self._other, "Training method…", method, bg=theme.CARD)
        choose.pack(padx=theme.px(16), pady=(0, theme.px(16)), anchor="w")
        self.columns.add(self._other, 1)

    def empty_cards(self) -> set[str]:
        family, now = self.state.family.declaration, self.state.draft.get("method")
        others = [title for method, title in _WITH_SETTINGS.items() if family is None or method in family.methods]
        if not others or now in _WITH_SETTINGS:
            return {*super().empty_cards(), str(self._other)}
        self._told.configure(text=f"{' and '.join(others)}: settings appear here once it is the training method.")
        return super().empty_cards()

    def field_class(self, option: Option) -> type[Field]:
        return FIELD_CLASSES.get(option.path) or super().field_class(option)

    def refresh(self) -> None:
        family = self.state.family.declaration
        has_none = family is not None and not family.parts
        empty = empty_text(family, family_about(self.state.family.name), str(self.state.draft.get("method")))
        self.list.set_empty_text(empty, can_add=not has_none)
        super().refresh()

    def _fill(self, part: dict[str, object]) -> dict[str, object]:
        """Pre-select the family's first submodule that is not in the list."""
        family = self.state.family.declaration
        listed = [each.get("part") for each in self.list.items]
        free = [name for name in (family.parts if family else ()) if name not in listed]
        return {**part, "part": free[0]} if free else part


def empty_text(family: FamilyDeclaration | None, about: FamilyAbout, method: str) -> str:
    """What is trained while no submodule is listed. `family` is None until it is loaded."""
    if family is None and about.network == "other":
        return EMPTY
    parts = (about.network,) if family is None else family.parts
    first = parts[0] if parts else "whole model"
    network = "U-Net" if first == "unet" else first.replace("_", " ")
    trained = {
        "lora": f"the LoRA adapts the {network}",
        "embedding": "textual inversion learns a new word and leaves the model unchanged",
    }.get(method, f"the {network} is trained" + (", all of its weights" if parts else ""))
    if not parts:
        return f"{about.title} has no submodules: {trained}."
    return f"No submodules listed: {trained}.\nAdd submodules to train others."


def alpha_note(settings: Mapping[str, object]) -> str:
    """What other programs make of an alpha that is not the rank; the run says the same of the files that it writes."""
    rank, alpha = settings.get("lora_rank"), settings.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1:
        return ""
    factor = alpha / (math.sqrt(rank) if settings.get("lora_rank_stabilized") else rank)
    if factor == 1 or settings.get("lora_algorithm") != "lora" or settings.get("lora_layouts") == "kohya":
        return ""
    return (
        "ComfyUI and Forge ignore alpha in files of diffusers' format: there, "
        f"set the LoRA's strength to {factor:.3g}, or use the file in kohya's format."
    )


def describe(part: dict[str, object]) -> ItemContent:
    """The text of a submodule in the list."""
    name, rate = part.get("part"), part.get("learning_rate")
    own = f"learning rate {format_value(rate)}" if rate else "default learning rate"
    stop = part.get("stop_after")
    until = "" if stop in (None, "never") else f"  ·  for {stop}"
    return ItemContent(part_title(str(name)) if name else "no submodule chosen", f"{own}{until}")
