"""Themed buttons, labels, cards and menus."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from app.widgets import rounded_images, theme
from app.widgets.button import Button, Style
from app.widgets.card import Card
from app.widgets.inputs import Box, Entry, Menu, Slider, Switch, TextBox, handler
from app.widgets.overflow import Overflow
from app.widgets.padding import UnscaledPadding
from app.widgets.popover import PopupMenu
from app.widgets.tooltip import Tooltip

__all__ = [
    "Box",
    "Button",
    "Entry",
    "Menu",
    "Overflow",
    "PopupMenu",
    "Segments",
    "Slider",
    "Style",
    "Switch",
    "TextBox",
    "add_tooltip",
    "card",
    "frame",
    "handler",
    "popup_menu",
    "text",
    "wrap_within",
]
_EDGE: Final = 2  # around each label


def text(
    parent: tk.Misc,
    content: str = "",
    font: theme.FontName = "body",
    *,
    colour: theme.Colour = theme.TEXT,
    bg: theme.Colour = theme.CARD,
    wrap: int = 0,
) -> tk.Label:
    """A plain label; customtkinter's own takes thirty times as long to create."""
    widget = tk.Label(
        parent,
        text=content,
        font=theme.tk_font(font),
        anchor="w",
        justify="left",
        padx=0,
        pady=0,
        borderwidth=0,
        highlightthickness=0,
        wraplength=theme.px(wrap),
    )
    return theme.paint(widget, bg=bg, fg=colour)


def wrap_within(label: tk.Label, panel: tk.Misc, margin: int = 32) -> None:
    """Wrap the label's text to the width of the panel; `margin` in unscaled pixels."""
    tk.Misc.bind(
        panel, "<Configure>", lambda event: label.configure(wraplength=max(event.width - theme.px(margin), 80)), add="+"
    )


def frame(parent: tk.Misc, bg: theme.Colour = theme.CARD) -> tk.Frame:
    """A plain frame for layout."""
    return theme.paint(tk.Frame(parent, borderwidth=0, highlightthickness=0), bg=bg)


def card(parent: tk.Misc, bg: theme.Colour = theme.WINDOW) -> Card:
    """A rounded panel."""
    return Card(parent, bg_color=bg)


def popup_menu(parent: tk.Misc) -> PopupMenu:
    """An empty menu."""
    return PopupMenu(parent)


def add_tooltip(widget: tk.Misc, content: str | Callable[[], str]) -> None:
    """Show a tooltip while the pointer rests on the widget."""
    Tooltip.attach(widget, content)


class Segments(UnscaledPadding, tk.Canvas):
    """A choice of two or three labels; Left and Right change it. `chosen` is called for what the user does."""

    def __init__(
        self,
        parent: tk.Misc,
        values: Sequence[str],
        chosen: Callable[[str], object],
        *,
        bg: theme.Colour = theme.WINDOW,
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        self._chosen, self._behind = chosen, bg
        self._value = ""
        self._names = list(values)
        self._panel = self.create_image(0, 0, anchor="nw")
        self.buttons = {value: self._button(value) for value in values}
        words, height = dict.fromkeys(self.buttons.values(), ""), theme.CONTROL_HEIGHT - 2 * _EDGE
        self._overflow, self._room = Overflow(self, words, theme.HOVER, height=height), 0
        self.bind("<Configure>", lambda event: self._draw())
        theme.follow(self, "segments", self._draw)

    def get(self) -> str:
        """The label that is chosen."""
        return self._value

    def set(self, value: str) -> None:
        """Choose a label without calling `chosen`."""
        if value != self._value:
            self._value = value
            for name, button in self.buttons.items():
                is_here = name == value
                button.configure(
                    fg_color=theme.SELECTED if is_here else theme.HOVER,
                    hover_color=theme.SELECTED if is_here else theme.PRESSED,
                )
            if self._room:
                self.fit(self._room)

    @property
    def full_width(self) -> int:
        """Of all labels, in pixels, also before it is laid out."""
        return sum(button.winfo_reqwidth() + 2 * theme.px(_EDGE) for button in self.buttons.values())

    def fit(self, room: int) -> int:
        """Take at most so many pixels: labels that do not fit go into a menu; returns the pixels that are used."""
        self._room = room
        return self._overflow.fit(room, self.buttons.get(self._value))

    def relabel(self, value: str, text: str) -> None:
        """Show other words for a label, such as with a count."""
        self.buttons[value].configure(text=text)
        if self._room:
            self.fit(self._room)

    def _button(self, value: str) -> Button:
        height, radius = theme.CONTROL_HEIGHT - 2 * _EDGE, theme.RADIUS - _EDGE
        button = Button(
            self, value, partial(self._choose, value), bg=theme.HOVER, width=height, height=height, radius=radius
        )
        button.pack(side="left", fill="both", expand=True, padx=_EDGE, pady=_EDGE)
        button.bind("<Left>", handler(lambda: self._step(-1)))
        button.bind("<Right>", handler(lambda: self._step(1)))
        return button

    def _choose(self, value: str) -> None:
        if value != self._value:
            self.set(value)
            self._chosen(value)

    def _step(self, by: int) -> None:
        place = self._names.index(self._value) + by if self._value in self._names else 0
        if 0 <= place < len(self._names):
            self.buttons[self._names[place]].focus_set()
            self._choose(self._names[place])

    def _draw(self) -> None:
        behind, fill = theme.resolve(self._behind), theme.resolve(theme.HOVER)
        if self.cget("bg") != behind:  # configured, a canvas requests its own default width until its next layout
            tk.Misc.configure(self, {"bg": behind})
        if self.winfo_width() > 1:
            self._shape = rounded_images.rounded(
                self, self.winfo_width(), self.winfo_height(), theme.px(theme.RADIUS), fill=fill, line=fill, bg=behind
            )
            self.itemconfigure(self._panel, image=self._shape)
