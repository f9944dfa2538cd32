"""Rows of a table that are dragged to another place."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets.table import Table


class RowDrag:
    """`movable`: the items that may be dragged, in their order; `moved` gets the item and its new place among them."""

    def __init__(self, table: Table, movable: Callable[[], list[str]], moved: Callable[[str, int], object]) -> None:
        self._table = table
        self._movable = movable
        self._moved = moved
        self.item = ""  # while it is held
        table.bind("<ButtonPress-1>", self._press, add="+")
        table.bind("<B1-Motion>", self._drag, add="+")
        table.bind("<ButtonRelease-1>", self._drop, add="+")

    def _press(self, event: tk.Event[tk.Misc]) -> None:
        item = self._table.identify_row(event.y)
        self.item = item if item in self._movable() else ""

    def _drag(self, event: tk.Event[tk.Misc]) -> None:
        """The row follows the pointer."""
        over = self._table.identify_row(event.y)
        if self.item and over != self.item and over in self._movable():
            self._table.move(self.item, "", self._table.index(over))

    def _drop(self, event: tk.Event[tk.Misc]) -> None:
        item, self.item = self.item, ""
        movable = self._movable()
        shown = [each for each in self._table.get_children() if each in movable]
        if item and shown != movable:
            self._moved(item, shown.index(item))
