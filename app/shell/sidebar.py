"""The list of sections with error counts, and the window's own settings below it."""

from __future__ import annotations

import tkinter as tk
from collections import Counter
from collections.abc import Callable
from functools import partial

from app.sections import SECTIONS
from app.sections.places import section_of
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Button, frame, handler, text
from app.widgets.tooltip import Tooltip

WIDTH = 184
NARROW = 60
TALL = 480  # unscaled pixels of height from which the name and tall entries fit
ENTRY_HEIGHT = 36
LOW_ENTRY_HEIGHT = 30


class Sidebar(tk.Frame):
    """One entry per section; Up and Down move between them."""

    def __init__(self, parent: tk.Misc, state: AppState, chosen: Callable[[str], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0, width=theme.px(WIDTH))
        theme.paint(self, bg=theme.SIDEBAR)
        self.pack_propagate(False)
        self._state = state
        self._chosen = chosen
        self._selected = ""
        self._narrow: bool | None = None
        self._tall = True
        theme.paint(tk.Frame(self, height=theme.px(8)), bg=theme.SIDEBAR).pack()
        self._brand = self._make_brand()
        self.entries = {name: self._entry(name) for name in SECTIONS}
        self._badges = {name: self._badge(entry) for name, entry in self.entries.items()}
        self._counts: dict[str, int] = {}
        self.bottom = frame(self, theme.SIDEBAR)
        self.bottom.pack(side="bottom", fill="x", padx=theme.px(10), pady=theme.px(10))
        self.bind("<Configure>", lambda event: self._fit(event.height))
        state.subscribe("faults", self.refresh, self)
        self.refresh()

    def select(self, name: str) -> None:
        """Highlight a section as the current one."""
        for other in (self._selected, name):
            if other:
                here = other == name
                ink = theme.ACCENT_TEXT if here else theme.TEXT
                self.entries[other].configure(
                    fg_color=theme.ACCENT_SOFT if here else theme.SIDEBAR,
                    hover_color=theme.ACCENT_SOFT if here else theme.HOVER,
                    text_color=ink,
                    icon_color=ink if here else theme.MUTED,
                )
        self._selected = name

    def refresh(self) -> None:
        """Show the number of errors in each section."""
        counts = Counter(section_of(fault.path) for fault in self._state.draft.faults)
        if counts == self._counts:
            return
        self._counts = counts
        for name, badge in self._badges.items():
            if not counts[name]:
                badge.place_forget()
            elif self._narrow:  # a dot next to the icon
                badge.configure(text="")
                badge.place(relx=1, x=-theme.px(4), y=theme.px(4), width=theme.px(7), height=theme.px(7), anchor="ne")
            else:
                badge.configure(text=str(counts[name]))
                size = theme.px(20)
                badge.place(relx=1, x=-theme.px(10), rely=0.5, width=size, height=size, anchor="e", y=0)
            theme.paint(badge, bg=theme.BAD if self._narrow else theme.BAD_SOFT)

    def narrow(self, narrow: bool) -> None:
        """Show icons only, or icons and names."""
        if narrow == self._narrow:
            return
        self._narrow = narrow
        self.configure(width=theme.px(NARROW if narrow else WIDTH))
        for name, entry in self.entries.items():
            entry.configure(text="" if narrow else f"  {SECTIONS[name][0]}", anchor="center" if narrow else "w")
        if narrow:
            self._title.pack_forget()
        else:
            self._title.pack(side="left", padx=theme.px(8))
        self._counts = {}
        self.refresh()

    def _fit(self, height: int) -> None:
        """In a low window, hide the name and draw the entries closer together."""
        tall = height >= theme.px(TALL)
        if tall == self._tall:
            return
        self._tall = tall
        if tall:
            self._brand.pack(
                fill="x", padx=theme.px(16), pady=(theme.px(8), theme.px(16)), before=self.entries["model"]
            )
        else:
            self._brand.pack_forget()
        for entry in self.entries.values():
            entry.configure(height=ENTRY_HEIGHT if tall else LOW_ENTRY_HEIGHT)
            entry.pack_configure(pady=theme.px(2) if tall else 0)

    def _make_brand(self) -> tk.Frame:
        brand = frame(self, theme.SIDEBAR)
        brand.pack(fill="x", padx=theme.px(16), pady=(theme.px(8), theme.px(16)))
        icons.label(brand, "brand", 28, theme.ACCENT_TEXT, theme.SIDEBAR).pack(side="left")
        self._title = text(brand, "Tandem", "brand", bg=theme.SIDEBAR)
        self._title.pack(side="left", padx=theme.px(8))
        return brand

    def _entry(self, name: str) -> Button:
        entry = Button(
            self,
            f"  {SECTIONS[name][0]}",
            lambda: self._chosen(name),
            icon=name,
            style="quiet",
            bg=theme.SIDEBAR,
            height=ENTRY_HEIGHT,
            anchor="w",
            tooltip="",
            width=40,
        )
        Tooltip.attach(entry, lambda: SECTIONS[name][0] if self._narrow else "")
        entry.configure(icon_color=theme.MUTED)
        entry.pack(fill="x", padx=10, pady=2)
        names = list(SECTIONS)
        for key, by in (("<Up>", -1), ("<Down>", 1)):
            to = names[(names.index(name) + by) % len(names)]
            entry.bind(key, handler(partial(self._focus, to)))
        return entry

    def _focus(self, name: str) -> None:
        self.entries[name].focus_set()

    def _badge(self, entry: Button) -> tk.Label:
        badge = tk.Label(entry, font=theme.tk_font("small"), padx=theme.px(5), pady=0, borderwidth=0)
        return theme.paint(badge, bg=theme.BAD_SOFT, fg=theme.BAD)
