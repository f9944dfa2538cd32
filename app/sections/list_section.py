"""A section with a list of groups (concepts, samples) and a form for the selected one."""

from __future__ import annotations

import tkinter as tk

from app import texts
from app.form.build import Card
from app.form.field import Field
from app.form.item_list import ItemList
from app.sections.form_section import FormSection, complete, options_at
from app.state import AppState
from modules.config import Option


class ListSection(FormSection):
    """The list and the section's other cards on the left, the selected item on the right."""

    list_path = ""
    list_title = ""
    item_cards: tuple[Card, ...] = ()

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state)
        state.subscribe("faults", self._changed, self)

    def build(self) -> None:
        self.list = ItemList(
            self.scroll.inside, self.list_path, self.list_title, self.state, self.describe, self._chosen
        )
        self.columns.add(self.list.frame, 0)
        self.item_blocks = [
            self.add_card(one.title, options_at([f"{self.list_path}.*.{name}" for name in one.paths]), 1)
            for one in self.item_cards
        ]
        for one in complete(self.cards, self.declared_in):
            self.add_card(one.title, options_at(one.paths), one.column)

    def describe(self, item: dict[str, object]) -> tuple[str, str]:
        """Title and detail of an item in the list."""
        raise NotImplementedError

    def refresh(self) -> None:
        self.list.refresh()
        super().refresh()

    def wants(self, option: Option) -> bool:
        if option.path.startswith(f"{self.list_path}.") and not self.list.items:
            return False
        return super().wants(option)

    def jump_to(self, path: str) -> None:
        head, _, rest = path.partition(".")
        place = rest.split(".")[0]
        if head == self.list_path and place.isdecimal() and int(place) < len(self.list.items):
            self.list.refresh()
            self.list.select(int(place))
        if path == self.list_path or (head == self.list_path and rest == place):
            self.scroll.see(self.list.canvas)
            self.list.canvas.focus_set()
            return
        if head == self.list_path and place == "*":
            if not self.list.items:
                self.list.add()
            path = path.replace("*", str(self.list.selected))
        super().jump_to(path)

    def find(self, path: str) -> Field | None:
        return super().find(path)

    def _chosen(self, place: int) -> None:
        for block in self.item_blocks:
            block.index = place
        if self.shown:
            super().refresh()


def first_line(value: object, otherwise: str) -> str:
    """The first words of a text that may be anything while it is typed."""
    lines = str(value or "").strip().splitlines()
    return lines[0] if lines else otherwise


def unnamed(list_path: str) -> str:
    """What stands for an item that has no name yet."""
    return texts.LIST_UNNAMED[list_path]
