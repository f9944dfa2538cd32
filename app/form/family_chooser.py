"""The families to choose from, over the whole width of the Model page, with a search; they can be folded away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from app.form.family_method import choose_family
from app.form.family_tiles import FamilyTiles, Tile
from app.form.hardware_fit import HardwareFit
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Entry, card, frame, handler, text
from app.widgets.scroll import Scroll
from modules.config.family_about import FamilyAbout, family_about
from modules.facts import family_names

CUSTOM: Final = ".py"  # the name of the tile for a file
_CUSTOM_TILE: Final = Tile(
    CUSTOM,
    "A model of your own",
    "file",
    theme.MUTED,
    ("A Python file with model, data and loss: docs/custom_models.md",),
)


class FamilyChooser:
    """The card `frame`; `browse` asks for the file of a custom family."""

    def __init__(self, area: Scroll, state: AppState, browse: Callable[[], object]) -> None:
        self.frame = card(area.inside)
        self._area, self._state, self._browse = area, state, browse
        self._all: Sequence[tuple[FamilyAbout, Tile]] = ()
        self._fit: HardwareFit | None = None
        head = frame(self.frame)
        head.pack(fill="x", padx=theme.px(16), pady=theme.px(10))
        text(head, "Model families", "heading").pack(side="left")
        self._order = text(head, "The usual ones come first.", "small", colour=theme.MUTED)
        self.fold_button = Button(head, "Hide", self.fold, icon="up", bg=theme.CARD, height=26)
        self.fold_button.pack(side="right")
        self.search = Entry(head, lambda words: self._filter(), width=220, placeholder="Name, maker or licence")
        for key in ("<Return>", "<KP_Enter>"):
            self.search.line.bind(key, handler(self._choose_first))
        self.search.line.bind("<Down>", handler(lambda: self.tiles.focus_set()))
        self._body = frame(self.frame)
        self.nothing = text(self._body, "", "small", colour=theme.MUTED)
        self.tiles = FamilyTiles(self._body, self._choose, self._type, self._see)
        self.tiles.pack(fill="x")
        for widget in (self.search.line, self.tiles):
            widget.bind("<Escape>", handler(self._clear))
        self.is_open = False
        self._show_fold()

    def fold(self) -> None:
        """Show or hide the families."""
        self.is_open = not self.is_open
        self._show_fold()

    def refresh(self) -> None:
        """Mark the family of the settings."""
        self.tiles.mark(str(self._state.draft.get("family") or ""))

    def _show_fold(self) -> None:
        if self.is_open:
            self._body.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(14)))
            self.search.pack(side="right", padx=(0, theme.px(8)))
            self._order.pack(side="left", padx=theme.px(12))
            if not self._all:
                self._state.background.run(lambda: [family_about(name) for name in family_names()], self._fill)
        else:
            self._body.pack_forget()
            self.search.pack_forget()
            self._order.pack_forget()
        label, icon = ("Hide", "up") if self.is_open else ("Show all", "down")
        self.fold_button.configure(text=label, icon=icon)

    def show_fit(self, fit: HardwareFit) -> None:
        """Say on each tile whether it fits the GPU that is here."""
        self._fit = fit
        if self._all:
            self._fill([about for about, _ in self._all])

    def _fill(self, found: Sequence[FamilyAbout]) -> None:
        lines = {about.name: self._fit.line(about) if self._fit else "" for about in found}
        places = {name: number for number, name in enumerate(family_names())}  # of the colours
        made = [(about, Tile.of(about, places[about.name], lines[about.name])) for about in found]
        self._all = sorted(made, key=lambda each: (each[0].popularity, each[0].title.casefold()))
        self._filter()
        self.refresh()

    def _filter(self) -> None:
        words = self.search.get().lower().split()
        shown = [tile for about, tile in self._all if all(word in _searched(about) for word in words)]
        self.tiles.show([*shown, _CUSTOM_TILE])
        if shown:
            self.nothing.pack_forget()
        else:
            self.nothing.configure(text=f"No family matches “{self.search.get().strip()[:40]}”.")
            self.nothing.pack(anchor="w", pady=(0, theme.px(8)), before=self.tiles)

    def _choose(self, name: str) -> None:
        if name == CUSTOM:
            self._browse()
        else:
            choose_family(self._state, name)

    def _choose_first(self) -> None:
        if len(self.tiles.titles) > 1:
            self.tiles.choose_first()

    def _type(self, character: str) -> None:
        self.search.focus_set()
        self.search.line.insert("end", character)

    def _clear(self) -> None:
        self.search.show("")
        self._filter()
        self.tiles.focus_set()

    def _see(self, top: int, bottom: int) -> None:
        self._area.see(self.tiles, part=(top, bottom))


def _searched(about: FamilyAbout) -> str:
    return " ".join((about.title, about.maker, about.name, about.size, about.licence, about.text)).lower()
