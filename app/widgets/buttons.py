"""Themed buttons, labels, cards and menus."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets import theme
from app.widgets.button import Button, Style
from app.widgets.card import Card
from app.widgets.inputs import Box, Entry, Menu, Slider, Switch, TextBox, handler
from app.widgets.popover import PopupMenu
from app.widgets.segments import Segments
from app.widgets.tooltip import Tooltip

__all__ = [
    "Box",
    "Button",
    "Entry",
    "Menu",
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
