"""A section made of generated cards; only which settings stand together is said by hand."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence

import customtkinter as ctk

from app import look, texts
from app.controls import frame, text
from app.form.build import Card, Columns, FieldCard, field_class
from app.form.field import Field
from app.form.item_list import ItemList, Kind
from app.scroll import Scroll
from app.state import AppState
from modules.config import Option, TrainConfig, options


class FormSection(ctk.CTkFrame):
    """The cards of one section. While it is hidden it draws nothing; what changed meanwhile is drawn at `show`."""

    name = ""
    declared_in: tuple[str, ...] = ()  # the sections of the config whose settings stand here
    cards: tuple[Card, ...] = ()

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, fg_color=look.WINDOW, bg_color=look.WINDOW, corner_radius=0)
        self.state = state
        self.shown = False
        self._forced: set[str] = set()  # advanced settings that were jumped to stay in sight
        self.blocks: list[FieldCard] = []
        self.lists: dict[str, ItemList] = {}
        title, intro = texts.SECTIONS[self.name]
        head = frame(self, look.WINDOW)
        head.pack(fill="x", padx=look.px(24), pady=(look.px(16), look.px(12)))
        text(head, title, "title", on=look.WINDOW).pack(side="left")
        self._intro = text(head, intro, colour=look.MUTED, on=look.WINDOW)
        self.head = head
        head.bind("<Configure>", lambda event: self._fit_head(event.width))
        self.scroll = Scroll(self)
        self.scroll.pack(fill="both", expand=True, padx=(look.px(16), look.px(4)))
        self.columns = Columns(self.scroll.inside)
        self.build()
        state.subscribe("draft", self._changed, self)
        if self.lists:
            state.subscribe("faults", self._changed, self)

    def build(self) -> None:
        """Make the cards; sections with more than generated fields add theirs."""
        for one in complete(self.cards, self.declared_in):
            self.add_card(one.title, options_at(one.paths), one.column)

    def add_list(self, kind: Kind, item_cards: Sequence[Card], column: int = 0) -> ItemList:
        """A list of groups, and the cards of its selected item."""
        cards = [(one.title, options_at([f"{kind.path}.*.{name}" for name in one.paths])) for one in item_cards]

        def chosen(place: int) -> None:
            for block in blocks:
                block.index = place
            if self.shown:
                self.refresh()

        made = ItemList(self.scroll.inside, kind, self.state, chosen)
        self.lists[kind.path] = made
        self.columns.add(made.frame, column)
        blocks = [self.add_card(title, wanted, 1) for title, wanted in cards]
        return made

    def add_card(self, title: str, wanted: Sequence[Option], column: int) -> FieldCard:
        """One more card of fields at the end."""
        block = FieldCard(self.scroll.inside, title, wanted, self.state, self.kind_of)
        self.blocks.append(block)
        self.columns.add(block.frame, column)
        return block

    def kind_of(self, option: Option) -> type[Field]:
        """The kind of field for a setting; sections with kinds of their own name them here."""
        return field_class(option)

    def show(self) -> None:
        """Come into sight."""
        self.shown = True
        self.refresh()

    def hide(self) -> None:
        """Go out of sight."""
        self.shown = False

    def refresh(self) -> None:
        """Show what the draft says."""
        for one in self.lists.values():
            one.refresh()
        self.arrange()
        for block in self.blocks:
            block.refresh()

    def arrange(self) -> None:
        """Show the settings that apply to the present choices."""
        filled = {str(block.frame) for block in self.blocks if block.arrange(self.wants)}
        fields = {str(block.frame) for block in self.blocks}
        self.columns.arrange(lambda one: str(one) in filled or str(one) not in fields)

    def wants(self, option: Option) -> bool:
        """Whether a setting is to be seen now."""
        if option.variant is not None and option.variant != self.state.draft.variant():
            return False
        shown = self.lists.get(option.path.partition(".*.")[0])
        if shown is not None and not shown.items:
            return False
        return self.state.advanced or not option.advanced or option.path in self._forced

    def jump_to(self, path: str) -> None:
        """Bring the field of a path into view, give it the focus and mark it."""
        head, _, rest = path.partition(".")
        if (shown := self.lists.get(head)) is not None:
            place = rest.split(".")[0]
            if place == "*":  # a setting that was searched for: of the selected item, or of a new one
                if not shown.items:
                    shown.add()
                path = path.replace("*", str(shown.selected))
            elif place.isdecimal() and int(place) < len(shown.items):
                shown.refresh()
                shown.select(int(place))
            if rest in ("", place) and place != "*":
                self.scroll.see(shown.canvas)
                shown.canvas.focus_set()
                return
        self._force(path)
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
        """The field that a widget is part of."""
        fields = (field for block in self.blocks for field in block.visible_fields())
        return next((field for field in fields if field.holds(widget)), None)

    def _force(self, path: str) -> None:
        for block in self.blocks:
            for option in block.options:
                known = option.path.replace("*", str(block.index))
                if path == known or path.startswith(f"{known}."):
                    self._forced.add(option.path)

    def _fit_head(self, width: int) -> None:
        """The sentence beside the title stands there if there is room for it."""
        others = [one for one in self.head.winfo_children() if one is not self._intro]
        needed = sum(one.winfo_reqwidth() for one in others) + self._intro.winfo_reqwidth() + look.px(64)
        if needed <= width:
            self._intro.pack(side="left", padx=look.px(16), pady=(look.px(6), 0))
        else:
            self._intro.pack_forget()

    def _changed(self) -> None:
        if self.shown:
            self.refresh()


def options_at(paths: Sequence[str]) -> list[Option]:
    """The options of these paths in this order, those of each optimizer included."""
    return [option for path in paths for option in options(TrainConfig) if option.path == path]


def complete(cards: Sequence[Card], declared_in: Sequence[str]) -> list[Card]:
    """The cards, and one more for settings that nobody has put anywhere yet: a new setting is never out of reach."""
    known = {path for one in cards for path in one.paths}
    inside = [
        option.path for option in options(TrainConfig) if option.section in declared_in and "*" not in option.path
    ]
    missing = tuple(dict.fromkeys(path for path in inside if path not in known and path not in LISTS))
    return [*cards, Card(texts.MORE_CARD, missing, 1)] if missing else list(cards)


def first_line(value: object, otherwise: str) -> str:
    """The first words of a text that may be anything while it is typed."""
    lines = str(value or "").strip().splitlines()
    return lines[0] if lines else otherwise


LISTS = {"family_options", *(option.path.partition(".*.")[0] for option in options(TrainConfig) if "*" in option.path)}
