"""What is trained: family, base model, method, and the options of the family."""

from __future__ import annotations

import tkinter as tk

from app import look, texts
from app.controls import card, text
from app.family import FamilyDescription, describe_family
from app.form.base_model import BaseModelField
from app.form.build import Card
from app.form.family import FamilyField, MethodField
from app.form.field import Field
from app.sections.form_section import FormSection, options_at
from app.state import AppState
from modules.config import Option

KINDS: dict[str, type[Field]] = {"family": FamilyField, "base_model": BaseModelField, "method": MethodField}
ASK_AFTER_MS = 500  # so that a path being typed is not asked about at every letter


class Section(FormSection):
    """The family's options are asked of a child process, once for each version of its file."""

    name = "model"
    declared_in = ("Model",)
    cards = (Card("Model", ("family", "base_model", "method"), 0),)

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        self._asked = ""
        self._unknown = ""  # the family that could not say what its options are
        self._job = ""
        super().__init__(parent, state)

    def build(self) -> None:
        super().build()
        self._note = card(self.scroll.inside)
        self._words = text(self._note, "", colour=look.MUTED, wrap=420)
        self._words.pack(padx=look.px(16), pady=look.px(16), anchor="w")
        self.columns.add(self._note, 1)
        self._own = self.add_card("", [], 1)
        self._free = self.add_card("", options_at(["family_options"]), 1)

    def kind_of(self, option: Option) -> type[Field]:
        return KINDS.get(option.path) or super().kind_of(option)

    def refresh(self) -> None:
        family = str(self.state.draft.get("family") or "")
        if family != self._asked:
            self._asked = family
            if self._job:
                self.after_cancel(self._job)
                self._job = ""
            if found := self._described():
                self._answered(found)
                return
            first = self.state.draft.family is None
            self._tell(texts.FAMILY_READING.format(name=family))
            self._job = self.after(0 if first else ASK_AFTER_MS, lambda: self._ask(family))
        super().refresh()

    def arrange(self) -> None:
        empty = {str(self._own.frame)} if self._described() is None else set[str]()
        if self._words.cget("text") == "":
            empty.add(str(self._note))
        filled = {str(block.frame) for block in self.blocks if block.arrange(self.wants)}
        fields = {str(block.frame) for block in self.blocks}
        self.columns.arrange(lambda one: str(one) not in empty and (str(one) in filled or str(one) not in fields))

    def wants(self, option: Option) -> bool:
        if option.path == "family_options":
            return self._unknown == self._asked
        return super().wants(option)

    def _described(self) -> FamilyDescription | None:
        found = self.state.draft.family
        return found if found and found.name == self._asked else None

    def _ask(self, family: str) -> None:
        self._job = ""
        if family:
            self.state.background.run(
                lambda: describe_family(family), self._answered, lambda why: self._failed(family, why)
            )

    def _answered(self, found: FamilyDescription) -> None:
        if not self.winfo_exists() or found.name != self._asked:
            return
        title = texts.FAMILY_OPTIONS.format(name=found.name)
        self._own.offer(title, found.options)
        self._tell("" if found.options else texts.FAMILY_NONE.format(name=found.name))
        self.state.draft.describe_family(found)
        self.refresh()

    def _failed(self, family: str, why: str) -> None:
        if self.winfo_exists() and family == self._asked:
            self._free.heading.configure(text=texts.FAMILY_OPTIONS.format(name=family))
            self._unknown = family
            self._tell(f"{why}\n{texts.FAMILY_UNKNOWN}")
            self.state.draft.describe_family(None)
            self.refresh()

    def _tell(self, words: str) -> None:
        self._words.configure(text=words)
