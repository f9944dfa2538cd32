"""A section of generated cards; only the grouping of settings is written by hand.

The first cards appear at the first visit at once, the others one by one between the events of the window (Slices).
"""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator, Sequence

from app.form.cards import Card, Columns, FieldCard, field_class
from app.form.field import Field
from app.form.item_list import ItemList, ItemListSpec
from app.sections import SECTIONS
from app.state import AppState
from app.widgets import theme
from app.widgets.scroll import Scroll
from app.widgets.section_head import SectionHead
from modules.config import Option, TrainConfig, options

FIRST_CARDS = 2  # shown at once, one in each column
PREPARED_FIELDS = 4  # created at each step while the section is hidden


class FormSection(tk.Frame):
    """The cards of one section. While hidden it draws nothing; `show` catches up."""

    name = ""
    declared_in: tuple[str, ...] = ()  # the config sections whose settings are shown here
    cards: tuple[Card, ...] = ()
    items = ""  # the list of setting groups of the section, and the cards of its selected item
    item_cards: tuple[Card, ...] = ()
    masters: tuple[
        str, ...
    ] = ()  # conditions of `depends_on`; of what needs an unmet one, only what was changed is shown

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self.state = state
        self.shown = False
        self._forced: set[str] = set()  # advanced settings that were jumped to stay visible
        self.blocks: list[FieldCard] = []
        self._due: list[FieldCard] = []  # those of the blocks that are still to appear
        self._jump = ""  # where to go when all have appeared
        self.lists: dict[str, ItemList] = {}
        self.head = SectionHead(self, *SECTIONS[self.name]).frame
        self.scroll = Scroll(self)
        self.scroll.pack(fill="both", expand=True, padx=(theme.px(16), theme.px(4)))
        self.columns = Columns(self.scroll.inside)
        self.build()
        state.subscribe("draft", self._changed, self)
        state.subscribe("place", self._changed, self)
        if self.lists:
            state.subscribe("faults", self._changed, self)

    def build(self) -> None:
        """Build the cards; subclasses add their own."""
        for each in complete(self.cards, self.declared_in):
            self.add_card(each.title, options_at(each.paths), each.column)

    def add_list(self, spec: ItemListSpec) -> ItemList:
        """Add the list of setting groups, and the cards of its selected item."""
        cards = [
            (each.title, options_at([f"{self.items}.*.{name}" for name in each.paths]), each.column)
            for each in self.item_cards
        ]

        def chosen(index: int) -> None:
            for block in blocks:
                block.index = index
            if self.shown:
                self.refresh()

        made = ItemList(self.scroll.inside, spec, self.state, chosen)
        self.lists[spec.path] = made
        self.columns.add(made.frame, 0)
        blocks = [self.add_card(title, wanted, column) for title, wanted, column in cards]
        return made

    def add_card(self, title: str, wanted: Sequence[Option], column: int) -> FieldCard:
        """Append a card of fields."""
        block = FieldCard(self.scroll.inside, title, wanted, self.state, self.field_class)
        self.blocks.append(block)
        self._due.append(block)
        self.columns.add(block.frame, column)
        return block

    def field_class(self, option: Option) -> type[Field]:
        """The field class for a setting; subclasses override it for special fields."""
        return field_class(option)

    def show(self) -> None:
        """Show the section."""
        self.shown = True
        self.refresh()
        steps = self._reveal()
        for _ in range(FIRST_CARDS):
            next(steps, None)
        if self._due:
            self.state.slices.soon(steps)

    def show_later(self, *blocks: FieldCard) -> None:
        """Let cards that got other fields appear anew, one by one."""
        self._due += [block for block in blocks if block not in self._due]
        if self.shown:
            self.state.slices.soon(self._reveal())

    def _reveal(self) -> Iterator[None]:
        """Let the cards that are due appear, those of one step each, and then do the jump that waits for them."""
        while self._due and self.shown:
            block = self._due.pop(0)
            if block.arrange(self.wants):
                self.arrange()
                block.refresh()
                yield
        if self._jump and self.shown:
            path, self._jump = self._jump, ""
            self.jump_to(path)

    def prepare(self) -> Iterator[None]:
        """Create the fields before the section is first shown, in steps of a few."""
        for block in self.blocks:
            for number, _ in enumerate(block.create(self.wants), 1):
                if number % PREPARED_FIELDS == 0:
                    yield
            block.arrange(self.wants)
            yield

    def hide(self) -> None:
        """Hide the section."""
        self.shown = False
        self._jump = ""

    def refresh(self) -> None:
        """Update the section from the draft."""
        for each in self.lists.values():
            each.refresh()
        self.arrange()
        for block in self.blocks:
            if block not in self._due:
                block.refresh()

    def arrange(self) -> None:
        """Show the settings that apply to the current choices."""
        empty = self.empty_cards()
        self.columns.arrange(lambda frame: str(frame) not in empty)

    def empty_cards(self) -> set[str]:
        """The names of the cards without a setting that applies, or that are still to appear; arranges the others."""
        return {str(block.frame) for block in self.blocks if block in self._due or not block.arrange(self.wants)}

    def wants(self, option: Option) -> bool:
        """Whether a setting is shown now."""
        if option.variant is not None and option.variant != self.state.draft.variant():
            return False
        shown = self.lists.get(option.path.partition(".*.")[0])
        if shown is not None and not shown.items:
            return False
        if option.path in self._forced:
            return True
        return (self.state.advanced or not option.advanced) and not self._is_collapsed(option)

    def _is_collapsed(self, option: Option) -> bool:
        """Whether a setting has no effect while one of the section's masters is not met, and is as it was."""
        draft = self.state.draft
        for condition in set(self.masters) & set((option.depends_on or "").split(" & ")):
            path, _, value = condition.partition("=")
            if draft.get(path) != (value or True):
                return draft.is_default(option.path, option)
        return False

    def jump_to(self, path: str) -> None:
        """Scroll to the field of a path, focus it and highlight it; once all cards have appeared, which move it."""
        if self._due:
            self._jump = path
            return
        head, _, rest = path.partition(".")
        if (shown := self.lists.get(head)) is not None:
            index = rest.split(".")[0]
            if index == "*":  # from the search: use the selected item, or a new one
                if not shown.items:
                    shown.add()
                path = path.replace("*", str(shown.selected))
            elif index.isdecimal() and int(index) < len(shown.items):
                shown.refresh()
                shown.select(int(index))
            if rest in ("", index) and index != "*":
                self.scroll.see(shown.canvas)
                shown.canvas.focus_set()
                return
        self.force(path)
        self.refresh()
        field = self.find(path)
        if field is not None:
            self.scroll.see(field.area)
            field.focus()
            field.flash()

    def find(self, path: str) -> Field | None:
        """The visible field of a path."""
        return next((field for block in self.blocks if (field := block.find(path))), None)

    def holding(self, widget: object) -> Field | None:
        """The field that contains a widget."""
        fields = (field for block in self.blocks for field in block.visible_fields())
        return next((field for field in fields if field.holds(widget)), None)

    def force(self, path: str) -> None:
        """Show the setting from the next `refresh` on, also if it is an advanced one."""
        for block in self.blocks:
            for option in block.options:
                known = option.path.replace("*", str(block.index))
                if path == known or path.startswith(f"{known}."):
                    self._forced.add(option.path)

    def _changed(self) -> None:
        if self.shown:
            self.refresh()


def options_at(paths: Sequence[str]) -> list[Option]:
    """The options at these paths, in this order, including those of every optimizer."""
    return [option for path in paths for option in options(TrainConfig) if option.path == path]


def complete(cards: Sequence[Card], declared_in: Sequence[str]) -> list[Card]:
    """The cards, plus a card "More" for settings that are in none, so that every setting is reachable."""
    known = {path for each in cards for path in each.paths}
    inside = [
        option.path for option in options(TrainConfig) if option.section in declared_in and "*" not in option.path
    ]
    missing = tuple(dict.fromkeys(path for path in inside if path not in known and path not in LISTS))
    return [*cards, Card("More", missing, 1)] if missing else list(cards)


def first_line(value: object, otherwise: str) -> str:
    """The first line of a text, or `otherwise` if it is empty."""
    lines = str(value or "").strip().splitlines()
    return lines[0] if lines else otherwise


LISTS = {"family_options", *(option.path.partition(".*.")[0] for option in options(TrainConfig) if "*" in option.path)}
