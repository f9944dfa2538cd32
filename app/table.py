"""A table of any length in the window's colours: Tk draws only the rows in sight."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from tkinter import ttk

from app import look
from app.bar import Bar

_STYLE = "Tandem.Treeview"


def table(parent: tk.Misc, columns: Mapping[str, tuple[str, int]]) -> ttk.Treeview:
    """A table that fills `parent`, with a scroll bar; `columns` are title and width by name.

    Call `restyle` when the colours change. All columns share the room that is left, or missing.
    """
    restyle(parent)
    tree = ttk.Treeview(parent, columns=list(columns), show="headings", style=_STYLE, selectmode="browse")
    for name, (title, width) in columns.items():
        tree.heading(name, text=title, anchor="w")
        tree.column(name, width=look.px(width), minwidth=look.px(min(width, 60)), stretch=True, anchor="w")
    total, former = sum(width for _, width in columns.values()), 0

    def fit(event: tk.Event[tk.Misc]) -> None:
        """The columns share the width there is; Tk itself leaves them as wide as they were and cuts off the last."""
        nonlocal former
        if event.width != former:
            former = event.width
            for name, (_, width) in columns.items():
                tree.column(name, width=event.width * width // total)

    tree.bind("<Configure>", fit, add="+")
    bar = Bar(parent, tree.yview)
    tree.configure(yscrollcommand=bar.show)
    bar.pack(side="right", fill="y")
    tree.pack(side="left", fill="both", expand=True)
    return tree


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
