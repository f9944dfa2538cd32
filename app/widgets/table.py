"""A themed table of any length; Tk draws only the visible rows."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from tkinter import ttk

from app.widgets import theme
from app.widgets.scrollbar import Scrollbar

_STYLE = "Tandem.Treeview"


def table(parent: tk.Misc, columns: Mapping[str, tuple[str, int]]) -> ttk.Treeview:
    """A table that fills `parent`, with a scrollbar; `columns` maps names to (title, width in unscaled pixels).

    The columns share the available width in proportion.
    """
    restyle(parent)  # the style must exist before its first table
    tree = ttk.Treeview(parent, columns=list(columns), show="headings", style=_STYLE, selectmode="browse")
    theme.follow(tree, "style", lambda: restyle(tree))
    for name, (title, width) in columns.items():
        tree.heading(name, text=title, anchor="w")
        tree.column(name, width=theme.px(width), minwidth=theme.px(min(width, 60)), stretch=True, anchor="w")
    total, previous = sum(width for _, width in columns.values()), 0

    def fit(event: tk.Event[tk.Misc]) -> None:
        """Resize all columns; Tk itself would keep their widths and cut off the last."""
        nonlocal previous
        if event.width != previous:
            previous = event.width
            for name, (_, width) in columns.items():
                tree.column(name, width=event.width * width // total)

    tree.bind("<Configure>", fit, add="+")
    bar = Scrollbar(parent, tree.yview)
    tree.configure(yscrollcommand=bar.show)
    bar.pack(side="right", fill="y")
    tree.pack(side="left", fill="both", expand=True)
    return tree


def restyle(widget: tk.Misc) -> None:
    """Apply the current colours, fonts and row height to all tables."""
    style = ttk.Style(widget)
    style.configure(
        _STYLE,
        background=theme.resolve(theme.CARD),
        fieldbackground=theme.resolve(theme.CARD),
        foreground=theme.resolve(theme.TEXT),
        font=theme.tk_font("body"),
        rowheight=theme.px(28),
        borderwidth=0,
        relief="flat",
    )
    style.map(
        _STYLE,
        background=[("selected", theme.resolve(theme.ACCENT_SOFT))],
        foreground=[("selected", theme.resolve(theme.TEXT))],
    )
    style.configure(
        f"{_STYLE}.Heading",
        background=theme.resolve(theme.HOVER),
        foreground=theme.resolve(theme.MUTED),
        font=theme.tk_font("strong"),
        relief="flat",
        padding=theme.px(6),
    )
    style.map(f"{_STYLE}.Heading", background=[("active", theme.resolve(theme.PRESSED))])
    style.layout(_STYLE, [("Treeview.treearea", {"sticky": "nswe"})])
