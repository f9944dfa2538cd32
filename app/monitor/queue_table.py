"""The table of the Queue page."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.monitor.queue_reader import QueueContent
from app.monitor.queue_texts import row_of
from app.widgets import theme
from app.widgets.table import Table, table

_COLUMNS: Final = {
    "number": ("No.", 50),
    "name": ("Run", 180),
    "state": ("State", 80),
    "devices": ("GPUs", 90),
    "time": ("Time", 148),
    "settings": ("Settings", 260),
    "result": ("Result", 210),
}
_SAYS_NOTHING: Final = {"devices": ("All", "Any 1"), "result": ("",)}


def queue_table(parent: tk.Misc) -> Table:
    """An empty table; each row is named by the number of its entry."""
    made = table(parent, _COLUMNS, ("number",), names=("name",))
    made.bind("<Configure>", lambda event: _choose_columns(made), add="+")

    def colour_rows() -> None:
        for state, colour in (("failed", theme.BAD), ("running", theme.ACCENT_TEXT), ("removed", theme.MUTED)):
            made.tag_configure(state, foreground=theme.resolve(colour))

    theme.follow(made, "tones", colour_rows)
    return made


def show_entries(shown: Table, content: QueueContent) -> None:
    """Show the entries in their order, and change only what differs."""
    entries = content.queue.in_order()
    order = tuple(str(entry.number) for entry in entries)
    if gone := [item for item in shown.get_children() if item not in order]:
        shown.delete(*gone)
    for index, (item, entry) in enumerate(zip(order, entries, strict=True)):
        number = entry.number
        texts = content.settings.get(number, ""), content.results.get(number, "")
        values = row_of(entry, *texts, content.durations_s.get(number))
        if not shown.exists(item):
            shown.insert("", index, iid=item, values=values, tags=(entry.state,))
        elif tuple(shown.item(item, "values")) != values:
            shown.item(item, values=values, tags=(entry.state,))
    if shown.get_children() != order:
        for index, item in enumerate(order):
            shown.move(item, "", index)
    _choose_columns(shown)


def _choose_columns(shown: Table) -> None:
    """Where there is little room, without columns that say nothing: of results if there is none, of GPUs if no entry
    has got or chosen one."""
    rows = [dict(zip(_COLUMNS, shown.item(item, "values"), strict=True)) for item in shown.get_children()]
    idle = {name for name, said in _SAYS_NOTHING.items() if rows and all(row[name] in said for row in rows)}
    shown.show_columns([name for name in _COLUMNS if not (shown.is_narrow and name in idle)])
