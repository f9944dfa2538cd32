"""The fields of the benchmark's window: how many steps, on how many processes, with which batch sizes."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.widgets import theme
from app.widgets.buttons import Entry, add_tooltip, frame, text, wrap_within
from modules.run.benchmark.records import MOST_STEPS

_EMPTY: Final = "Empty: 1, 2, 4, … and all that these settings start, with their own batch size."
_HINT_WIDTH: Final = 240  # unscaled, until it is known how much is left
_FIELDS: Final = (
    ("steps", "Steps", "30", "How many optimizer steps are measured in each case, after 10 that are not."),
    ("ranks", "Processes", "", "Such as 1 2 4: how many processes, each with a GPU if there are any."),
    ("batch_sizes", "Batch sizes", "", "Such as 1 2 4 8: also these, on the fewest processes."),
)  # option of the program, title, first content, help


class BenchmarkOptions:
    """A row of fields in `parent`."""

    def __init__(self, parent: tk.Misc) -> None:
        row = frame(parent)
        row.pack(fill="x", pady=(0, theme.px(10)))
        self.entries: dict[str, Entry] = {}
        for name, title, shown, tip in _FIELDS:
            label = text(row, title)
            label.pack(side="left", padx=(0, theme.px(8)))
            entry = Entry(row, width=110)
            entry.show(shown)
            entry.pack(side="left", padx=(0, theme.px(20)))
            for widget in (label, entry):
                add_tooltip(widget, tip)
            self.entries[name] = entry
        hint = frame(row)
        hint.pack(side="left", fill="x", expand=True)
        label = text(hint, _EMPTY, colour=theme.MUTED, wrap=_HINT_WIDTH)
        wrap_within(label, hint, margin=0)
        label.pack(anchor="w")

    def arguments(self) -> list[str]:
        """The options of the program. Raises ValueError, whose text names the field, for a number that is none."""
        found: list[str] = []
        for name, title, *_ in _FIELDS:
            words = self.entries[name].get().replace(",", " ").split()
            if wrong := [word for word in words if not (word.isdecimal() and 1 <= int(word) <= MOST_STEPS)]:
                raise ValueError(f"{title}: {wrong[0]!r} is no whole number from 1 to {MOST_STEPS:,}.")
            if name == "steps" and len(words) > 1:
                raise ValueError("Steps: give one number, such as 30.")
            if words:
                found += [f"--{name}", *words]
        return found
