"""A drop-down menu."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from app.widgets import icons, theme
from app.widgets.ellipsis import fit
from app.widgets.inputs.box import Box
from app.widgets.popover import PopupMenu
from modules.files import printable

_BESIDE_TEXT: Final = 35  # unscaled pixels: the gap before it, and the arrow


class Menu(Box):
    """One of several values; Space, Down or a click opens the menu, a letter selects the next match."""

    def __init__(
        self,
        parent: tk.Misc,
        values: Sequence[str],
        chosen: Callable[[str], object],
        *,
        bg: theme.Colour = theme.CARD,
        width: int = 120,
        titles: Mapping[str, str] | None = None,
        details: Mapping[str, str] | None = None,
        names_values: bool = False,
    ) -> None:
        """`details` stand below the titles in the list; if it `names_values`, these stand beside other titles."""
        super().__init__(parent, bg, width)
        self.choices = tuple(values)
        self._titles = titles or {}
        self._details = details or {}
        self._names_values = names_values
        self._chosen = chosen
        self._value = ""
        self._text = self.create_text(theme.px(9), 0, anchor="w", font=theme.tk_font())
        self._arrow = self.create_image(0, 0)
        self.configure(takefocus=1)
        self.bind("<Configure>", lambda event: self.draw(), add="+")
        self.bind("<Button-1>", lambda event: self.open())
        for key in ("<space>", "<Down>", "<Return>", "<Alt-Down>"):
            self.bind(key, lambda event: self.open())
        self.bind("<Key>", self._jump, add="+")
        self.bind("<FocusIn>", lambda event: self._focus(True))
        self.bind("<FocusOut>", lambda event: self._focus(False))
        self.draw()

    def show(self, value: str) -> None:
        """Show a value without calling `chosen`."""
        if value != self._value:
            self._value = value
            self.draw()

    def set_choices(self, values: Sequence[str], titles: Mapping[str, str] | None = None) -> None:
        """Replace the list of values and, if given, their titles."""
        self.choices = tuple(values)
        if titles is not None:
            self._titles = titles
            self.draw()

    def value(self) -> str:
        """The chosen value."""
        return self._value

    def choose(self, value: str) -> None:
        """Choose a value as the user does."""
        self.show(value)
        self._chosen(value)

    def enable(self, enabled: bool) -> None:
        """Enable or disable it."""
        self._enabled = enabled
        self.configure(takefocus=enabled)
        self.draw()

    def open(self) -> str:
        """Open the menu."""
        if not self._enabled:
            return "break"
        self.focus_set()
        menu = self.popover()
        menu.open_below(self, gap=2)
        return "break"

    def popover(self) -> PopupMenu:
        """The list of values as it opens."""
        menu = PopupMenu(self)
        for value in self.choices:
            title = self._titles.get(value, value)
            menu.add_command(
                title,
                partial(self.choose, value),
                accelerator=value if self._names_values and title.lower() != value else "",
                detail=self._details.get(value, ""),
                is_chosen=value == self._value,
            )
        return menu

    def draw(self) -> None:
        super().draw()
        if not hasattr(self, "_arrow"):
            return
        width, height = self.extent()
        middle = height // 2
        self.coords(self._text, theme.px(9), middle)
        self.coords(self._arrow, width - theme.px(15), middle)
        self._chevron = icons.image("down", 14, theme.MUTED if self._enabled else theme.FAINT)
        self.itemconfigure(self._arrow, image=self._chevron)
        ink = theme.resolve(theme.TEXT if self._enabled else theme.FAINT)
        title = printable(self._titles.get(self._value, self._value), mask=False)
        room = width - theme.px(_BESIDE_TEXT)
        self.itemconfigure(self._text, text=fit(self, title, theme.tk_font(), room), fill=ink)

    def _jump(self, event: tk.Event[tk.Misc]) -> None:
        letter = event.char.lower()
        titles = {value: self._titles.get(value, value).lower() for value in self.choices}
        hits = [value for value in self.choices if titles[value].startswith(letter)]
        if self._names_values and not hits:
            hits = [value for value in self.choices if value.startswith(letter)]
        if letter.strip() and hits and self._enabled:
            place = self.choices.index(self._value) if self._value in self.choices else -1
            later = [value for value in hits if self.choices.index(value) > place]
            self.choose((later or hits)[0])
