"""A table of any length in the window's colours: Tk draws only the rows in sight."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from tkinter import ttk

import customtkinter as ctk

from app import look

_STYLE = "Tandem.Treeview"


def table(parent: tk.Misc, columns: Mapping[str, tuple[str, int]]) -> ttk.Treeview:
    """A table that fills `parent`, with a scroll bar; `columns` are title and width by name.

    Call `restyle` when the colours change. The last column takes the room that is left.
    """
    restyle(parent)
    tree = ttk.Treeview(parent, columns=list(columns), show="headings", style=_STYLE, selectmode="browse")
    for place, (name, (title, width)) in enumerate(columns.items()):
        is_last = place == len(columns) - 1
        tree.heading(name, text=title, anchor="w")
        tree.column(name, width=look.px(width), minwidth=look.px(60), stretch=is_last, anchor="w")
    bar = scroll_bar(parent, tree.yview)
    tree.configure(yscrollcommand=bar.set)
    bar.pack(side="right", fill="y")
    tree.pack(side="left", fill="both", expand=True)
    return tree


def scroll_bar(parent: tk.Misc, command: Callable[..., object], on: look.Colour = look.CARD) -> ctk.CTkScrollbar:
    """The bar beside a table or a canvas."""
    return ctk.CTkScrollbar(
        parent, command=command, width=12, bg_color=on, fg_color=on, button_color=look.PRESSED,
        button_hover_color=look.FIELD_LINE, border_spacing=3,
    )  # fmt: skip


def restyle(widget: tk.Misc) -> None:
    """Give all tables the present colours, fonts and row height."""
    style = ttk.Style(widget)
    style.configure(
        _STYLE,
        background=look.now(look.CARD),
        fieldbackground=look.now(look.CARD),
        foreground=look.now(look.TEXT),
        font=look.tk_font("body"),
        rowheight=look.px(28),
        borderwidth=0,
        relief="flat",
    )
    style.map(
        _STYLE,
        background=[("selected", look.now(look.ACCENT_SOFT))],
        foreground=[("selected", look.now(look.TEXT))],
    )
    style.configure(
        f"{_STYLE}.Heading",
        background=look.now(look.HOVER),
        foreground=look.now(look.MUTED),
        font=look.tk_font("strong"),
        relief="flat",
        padding=look.px(6),
    )
    style.map(f"{_STYLE}.Heading", background=[("active", look.now(look.PRESSED))])
    style.layout(_STYLE, [("Treeview.treearea", {"sticky": "nswe"})])
