"""The model families as tiles on one canvas: icon, name, size, memory and licence."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from PIL import ImageTk

from app.widgets import icons, rounded_images, theme
from app.widgets.ellipsis import fit, fit_lines
from app.widgets.tooltip import Tooltip
from modules.config.family_about import FamilyAbout

_ICONS: Final = {"unet": "unet", "transformer": "layers", "other": "model"}
_SMALLEST: Final = 232  # this and all sizes below in unscaled pixels
_HEIGHT: Final = 87  # with three lines below the title
_LINES: Final = 3
_GAP: Final = 8
_ICON: Final = 26
_SIDE: Final = 12
_ABOVE: Final = 10
_LINE: Final = 17


@dataclass(frozen=True)
class Tile:
    """A family, or what else can be chosen; `lines` stand below the title, `more` only in the tooltip."""

    name: str
    title: str
    icon: str
    colour: theme.Colour
    lines: tuple[str, ...] = ()
    more: str = ""

    @classmethod
    def of(cls, about: FamilyAbout, number: int, fit: str) -> Tile:
        """The tile of a family, the `number`th; `fit` says whether it fits this computer, if that is known."""
        colour = theme.SERIES[number % len(theme.SERIES)]
        if about.weights:
            size = about.size.removesuffix(" parameters")
            made_by = " · ".join(filter(None, (about.maker, size)))
            lines: tuple[str, ...] = (made_by, fit or about.least_memory, about.short_licence)
            licence = "" if about.licence == about.short_licence else f"Licence: {about.licence}"
            more = "\n".join(filter(None, (about.least_memory if fit else "", licence)))
        else:
            first, _, rest = about.text.partition("; ")
            lines, more = (first,), f"{rest[:1].upper()}{rest[1:]}"
        return cls(about.name, about.title, _ICONS[about.network], colour, lines, more)


class FamilyTiles(tk.Canvas):
    """Arrow keys, Home and End move the focus ring; Return, Space or a click chooses: `chosen` gets the name.

    `typed` gets what is typed here, `moved` the upper and lower edge of the tile that gets the focus ring, in pixels.
    A tooltip shows the lines of a tile whole, and what else is to be known.
    """

    def __init__(
        self,
        parent: tk.Misc,
        chosen: Callable[[str], object],
        typed: Callable[[str], object],
        moved: Callable[[int, int], object],
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0, height=1, takefocus=1)
        self._chosen, self._typed, self._moved = chosen, typed, moved
        self._tiles: Sequence[Tile] = ()
        self._name = ""  # of the chosen one
        self._focused = 0
        self._pointed = -1
        self._has_focus = False
        self._lines = _LINES  # below the title of the tile that has most
        self._photos: dict[int, list[ImageTk.PhotoImage]] = {}  # Tk itself keeps no reference
        self._listen()
        theme.paint(self, bg=theme.CARD)
        theme.follow(self, "tiles", self.draw)

    @property
    def titles(self) -> list[str]:
        """The titles of the tiles."""
        return [tile.title for tile in self._tiles]

    @property
    def columns(self) -> int:
        """As many as fit."""
        return max(1, (self.winfo_width() + theme.px(_GAP)) // theme.px(_SMALLEST + _GAP))

    def show(self, tiles: Sequence[Tile]) -> None:
        """Show other tiles."""
        self._tiles = tiles
        self._focused = next((place for place, tile in enumerate(tiles) if tile.name == self._name), 0)
        self._pointed = -1
        self.draw()

    def mark(self, name: str) -> None:
        """Mark the chosen one."""
        if name != self._name:
            self._name = name
            self.show(self._tiles)

    def choose_first(self) -> None:
        """Choose the first tile."""
        self._choose(0)

    def box(self, place: int) -> tuple[int, int, int, int]:
        """Left, top, width and height of a tile, in pixels."""
        columns, gap, height = self.columns, theme.px(_GAP), theme.px(_HEIGHT + (self._lines - _LINES) * _LINE)
        width = (self.winfo_width() - (columns - 1) * gap) // columns
        return place % columns * (width + gap), place // columns * (height + gap), width, height

    def draw(self) -> None:
        """Draw all tiles."""
        self.delete("all")
        self._photos.clear()
        if self.winfo_width() <= 1:
            return
        room = self.box(0)[2] - theme.px(3 * _SIDE + _ICON) + 2
        self._lines = max([_LINES, *(len(self._wrapped(tile, room)) for tile in self._tiles)])
        for place in range(len(self._tiles)):
            self._draw_tile(place)
        rows = -(-len(self._tiles) // self.columns)
        height = rows * (self.box(0)[3] + theme.px(_GAP)) - theme.px(_GAP)
        if int(self.cget("height")) != height:
            self.configure(height=max(1, height))

    def _draw_tile(self, place: int) -> None:
        if not 0 <= place < len(self._tiles) or self.winfo_width() <= 1:
            return
        tag = f"tile-{place}"
        self.delete(tag)
        tile = self._tiles[place]
        x, y, width, height = self.box(place)
        is_chosen, has_ring = tile.name == self._name, self._has_focus and place == self._focused
        fill = theme.ACCENT_SOFT if is_chosen else theme.HOVER if place == self._pointed else theme.FIELD
        line = theme.ACCENT if has_ring else theme.ACCENT_TEXT if is_chosen else theme.EDGE
        panel = rounded_images.rounded(
            self,
            width,
            height,
            theme.px(theme.RADIUS),
            fill=theme.resolve(fill),
            line=theme.resolve(line),
            bg=theme.resolve(theme.CARD),
            line_width=max(theme.px(2 if has_ring else 1), 1),
        )
        icon = icons.image(tile.icon, _ICON, tile.colour)
        self._photos[place] = [panel, icon]
        self.create_image(x, y, anchor="nw", image=panel, tags=tag)
        self.create_image(x + theme.px(_SIDE), y + theme.px(_ABOVE), anchor="nw", image=icon, tags=tag)
        left = x + theme.px(2 * _SIDE + _ICON)
        self._draw_texts(place, left, y + theme.px(_ABOVE - 2), x + width - theme.px(_SIDE) + 2 - left, tag)

    def _draw_texts(self, place: int, x: int, y: int, room: int, tag: str) -> None:
        tile = self._tiles[place]
        strong, small, muted = theme.tk_font("strong"), theme.tk_font("small"), theme.resolve(theme.MUTED)
        title = fit(self, tile.title, strong, room)
        self.create_text(x, y, anchor="nw", text=title, font=strong, fill=theme.resolve(theme.TEXT), tags=tag)
        for number, shown in enumerate(self._wrapped(tile, room), start=1):
            at = y + theme.px(_LINE * number + 3)
            self.create_text(x, at, anchor="nw", text=shown, font=small, fill=muted, tags=tag)

    def _wrapped(self, tile: Tile, room: int) -> list[str]:
        """The lines of a tile as they are drawn, each on two at most."""
        small = theme.tk_font("small")
        return [part for line in tile.lines for part in fit_lines(self, line, small, room, most=2).split("\n")]

    def _listen(self) -> None:
        self.bind("<Configure>", lambda event: self.draw())
        self.bind("<Motion>", lambda event: self._point(self._at(event.x, event.y)))
        self.bind("<Leave>", lambda event: self._point(-1))
        self.bind("<Button-1>", lambda event: self._choose(self._at(event.x, event.y)))
        for key in ("<Return>", "<KP_Enter>", "<space>"):
            self.bind(key, lambda event: self._choose(self._focused))
        steps: dict[str, Callable[[], int]] = {
            "<Left>": lambda: self._focused - 1,
            "<Right>": lambda: self._focused + 1,
            "<Up>": lambda: self._focused - self.columns,
            "<Down>": lambda: self._focused + self.columns,
            "<Home>": lambda: 0,
            "<End>": lambda: len(self._tiles) - 1,
        }
        for key, step in steps.items():
            self.bind(key, lambda event, step=step: self._move(step()))  # type: ignore[misc]
        self.bind("<Key>", self._key)
        self.bind("<FocusIn>", lambda event: self._focus(True), add="+")
        self.bind("<FocusOut>", lambda event: self._focus(False), add="+")

    def _focus(self, has_focus: bool) -> None:
        self._has_focus = has_focus
        self._draw_tile(self._focused)
        if has_focus:
            self.after_idle(self._see)

    def _move(self, place: int) -> str:
        if 0 <= place < len(self._tiles):
            before, self._focused = self._focused, place
            self._draw_tile(before)
            self._draw_tile(place)
            self._see()
            self._hint(place)
        return "break"

    def _see(self) -> None:
        if self._tiles:
            _, top, _, height = self.box(self._focused)
            self._moved(top, top + height)

    def _choose(self, place: int) -> str:
        if 0 <= place < len(self._tiles):
            self._focused = place
            Tooltip.of(self).hide()
            self.focus_set()
            self._chosen(self._tiles[place].name)
        return "break"

    def _at(self, x: int, y: int) -> int:
        """The tile at a place; -1 if there is none."""
        for place in range(len(self._tiles)):
            left, top, width, height = self.box(place)
            if left <= x < left + width and top <= y < top + height:
                return place
        return -1

    def _point(self, place: int) -> None:
        if place != self._pointed:
            before, self._pointed = self._pointed, place
            tk.Misc.configure(self, {"cursor": "hand2" if place >= 0 else ""})
            self._draw_tile(before)
            self._draw_tile(place)
            self._hint(place)

    def _hint(self, place: int) -> None:
        """What is to be known of a tile in a tooltip, in a moment."""
        tooltip = Tooltip.of(self)
        if place < 0:
            tooltip.hide()
            return
        tile, (left, top, _, height) = self._tiles[place], self.box(place)
        tooltip.rest(self, "\n".join(filter(None, (tile.title, *tile.lines, tile.more))), (left, top, top + height))

    def _key(self, event: tk.Event[tk.Misc]) -> str:
        if not event.char or not event.char.isprintable() or int(event.state) & 0xC:  # with Control or Alt
            return ""
        self._typed(event.char)
        return "break"
