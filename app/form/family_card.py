"""The chosen model family for people: name, maker, size, memory and licence."""

from __future__ import annotations

import tkinter as tk

from app.widgets import icons, theme
from app.widgets.buttons import card, frame, text, wrap_within
from modules.config.family_about import FamilyAbout

FACTS = ("Size", "Memory", "Licence")


class FamilyCard:
    """The card `frame`; `show` fills it."""

    def __init__(self, parent: tk.Misc) -> None:
        self.frame = card(parent)
        head = frame(self.frame)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(14), theme.px(8)))
        icons.label(head, "model", 30, theme.ACCENT_TEXT, theme.CARD).pack(side="left", padx=(0, theme.px(12)))
        names = frame(head)
        names.pack(side="left", fill="x", expand=True)
        self.title = text(names, "", "heading")
        self.title.pack(anchor="w")
        self.maker = text(names, "", "small", colour=theme.MUTED)
        self.maker.pack(anchor="w")
        self._facts = frame(self.frame)
        self._facts.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(12)))
        self._facts.grid_columnconfigure(1, weight=1)
        self.labels = [text(self._facts, title, colour=theme.MUTED) for title in FACTS]
        self.values = [text(self._facts, "") for _ in FACTS]
        for row, label in enumerate(self.labels):
            label.grid(row=row, column=0, sticky="nw", padx=(0, theme.px(16)), pady=theme.px(2))
        for value in self.values:
            wrap_within(value, self.frame, 120)
        self.text = text(self._facts, "")
        wrap_within(self.text, self.frame)

    def show(self, about: FamilyAbout) -> None:
        """Show another family."""
        self.title.configure(text=about.title)
        self.maker.configure(text=f"{about.maker}  ·  {about.name}" if about.maker else about.name)
        contents = (
            (f"{about.size}, {about.weights} in bf16", about.memory, about.licence) if about.weights else ("",) * 3
        )
        for row, (label, value, content) in enumerate(zip(self.labels, self.values, contents, strict=True)):
            value.configure(text=content)
            for column, each in enumerate((label, value)):
                if content:
                    each.grid(row=row, column=column, sticky="nw", pady=theme.px(2))
                else:
                    each.grid_remove()
        self.text.configure(text=about.text)
        if about.text:
            self.text.grid(row=len(FACTS), column=0, columnspan=2, sticky="w")
        else:
            self.text.grid_remove()
