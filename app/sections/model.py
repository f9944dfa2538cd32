"""What is trained: family, base model, method, and the options of the family."""

from __future__ import annotations

import tkinter as tk

from app import look, texts
from app.controls import card, text, wrap_within
from app.family import FamilyDescription
from app.form.base_model import BaseModelField
from app.form.build import Card
from app.form.family import FamilyField, MethodField
from app.form.field import Field
from app.sections.form_section import FormSection, options_at
from app.state import AppState
from modules.config import Option

KINDS: dict[str, type[Field]] = {"family": FamilyField, "base_model": BaseModelField, "method": MethodField}


class Section(FormSection):
    """The family's options come as it has said what they are (app/family_watch.py)."""

    name = "model"
    declared_in = ("Model",)
    cards = (Card(texts.CARD_MODEL, ("family", "base_model", "method"), 0),)

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self._shown: tuple[str, str, FamilyDescription | None] = ("", "", None)
        super().__init__(parent, state)
        state.subscribe("family", self._changed, self)

    def build(self) -> None:
        super().build()
        self._note = card(self.scroll.inside)
        self._words = text(self._note, "", colour=look.MUTED)
        wrap_within(self._words, self._note)
        self._words.pack(padx=look.px(16), pady=look.px(16), anchor="w")
        self.columns.add(self._note, 1)
        self._own = self.add_card("", [], 1)
        self._more = self.add_card("", [], 0)
        self._free = self.add_card("", options_at(["family_options"]), 1)

    def kind_of(self, option: Option) -> type[Field]:
        return KINDS.get(option.path) or super().kind_of(option)

    def refresh(self) -> None:
        self._show_family()
        super().refresh()

    def jump_to(self, path: str) -> None:
        self._show_family()
        super().jump_to(path)

    def arrange(self) -> None:
        known = self.state.family.described is not None
        empty = set[str]() if known else {str(self._own.frame), str(self._more.frame)}
        if self._words.cget("text") == "":
            empty.add(str(self._note))
        filled = {str(block.frame) for block in self.blocks if block.arrange(self.wants)}
        fields = {str(block.frame) for block in self.blocks}
        self.columns.arrange(lambda one: str(one) not in empty and (str(one) in filled or str(one) not in fields))

    def wants(self, option: Option) -> bool:
        if option.path == "family_options":
            return bool(self.state.family.fault)
        return super().wants(option)

    def _show_family(self) -> None:
        """The options of the family that was asked last, or why there are none."""
        asked, fault, found = self.state.family.asked, self.state.family.fault, self.state.family.described
        if (asked, fault, found) == self._shown:
            return
        self._shown = asked, fault, found
        title = texts.FAMILY_OPTIONS.format(name=asked)
        if found is not None:
            self._own.offer(title, [option for option in found.options if not option.advanced])
            more = texts.FAMILY_MORE.format(name=asked)
            self._more.offer(more, [option for option in found.options if option.advanced])
            self._words.configure(text="" if found.options else texts.FAMILY_NONE.format(name=asked))
        elif fault:
            self._free.heading.configure(text=title)
            self._words.configure(text=f"{fault}\n{texts.FAMILY_UNKNOWN}")
        else:
            self._words.configure(text=texts.FAMILY_READING.format(name=asked))
