"""The list of sections with error counts, and the window's own settings below it."""

from __future__ import annotations

import tkinter as tk
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from app.sections import SECTIONS
from app.sections.places import section_of
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Button, Overflow, frame, handler, text
from app.widgets.tooltip import Tooltip

WIDTH = 184
NARROW = 60
TALL = 480  # unscaled pixels of height from which the name and tall entries fit
TALL_NARROW = 590  # where the buttons below them stand one above the other
ENTRY_HEIGHT = 36
LOW_ENTRY_HEIGHT = 30
BOTTOM_PAD, BESIDE_BUTTON = 10, 2  # unscaled pixels around the buttons below the entries


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
        self.bottom.pack(side="bottom", fill="x", padx=theme.px(10), pady=theme.px(BOTTOM_PAD))
        self._below: dict[Button, str] = {}
        self._shown_below: tuple[list[Button], str] = ([], "")
        words = {entry: SECTIONS[name][0] for name, entry in self.entries.items()}
        self.overflow = Overflow(self, words, theme.SIDEBAR, also=self._hidden_below, height=LOW_ENTRY_HEIGHT)
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
        self._fit(self.winfo_height())

    def set_below(self, buttons: Mapping[Button, str]) -> None:
        """The buttons of `bottom`, with their words for the menu; in a low window only the first stays in sight."""
        self._below = dict(buttons)
        self._fit(self.winfo_height())

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
        self._fit(self.winfo_height())

    def _fit(self, height: int) -> None:
        """In a low window, hide the name and draw the entries closer together; what does not fit goes into a menu."""
        if height <= 1 or not self._selected:
            return  # until they are known
        tall = height >= theme.px(TALL_NARROW if self._narrow else TALL)
        if tall != self._tall:
            self._tall = tall
            if tall:
                first = self.overflow.place_of(self.entries["model"])
                self._brand.pack(fill="x", padx=theme.px(16), pady=(theme.px(8), theme.px(16)), before=first)
            else:
                self._brand.pack_forget()
            for entry in self.entries.values():
                entry.configure(height=ENTRY_HEIGHT if tall else LOW_ENTRY_HEIGHT)
            self.overflow.repack(pady=theme.px(2) if tall else 0)
        above = theme.px(8) + (self._brand.winfo_reqheight() + theme.px(24) if tall else 0)
        entries = sum(entry.winfo_reqheight() + 2 * theme.px(2) * tall for entry in self.entries.values())
        all_below = not self._narrow or above + entries + self._height_below(len(self._below)) <= height
        shown_below, side = list(self._below)[: None if all_below else 1], "top" if self._narrow else "left"
        if (shown_below, side) != self._shown_below:
            self._shown_below = shown_below, side
            for button in self._below:
                button.pack_forget()
            for button in shown_below:
                button.pack(side=side, padx=BESIDE_BUTTON, pady=BESIDE_BUTTON)
        rows = len(self._below) if all_below and self._narrow else 1
        room = height - above - self._height_below(rows)
        self.overflow.fit(room, self.entries[self._selected], menu=not all_below)

    def _height_below(self, rows: int) -> int:
        return 2 * theme.px(BOTTOM_PAD) + rows * theme.px(theme.CONTROL_HEIGHT + 2 * BESIDE_BUTTON)

    def _hidden_below(self) -> Sequence[tuple[str, Callable[[], object]]]:
        return [(words, button.invoke) for button, words in self._below.items() if not button.winfo_manager()]

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
        for key, by in (("<Up>", -1), ("<Down>", 1)):
            entry.bind(key, handler(partial(self._focus_beside, name, by)))
        return entry

    def _focus_beside(self, name: str, by: int) -> None:
        shown = [each for each, entry in self.entries.items() if entry.winfo_manager()]
        self.entries[shown[(shown.index(name) + by) % len(shown)]].focus_set()

    def _badge(self, entry: Button) -> tk.Label:
        badge = tk.Label(entry, font=theme.tk_font("small"), padx=theme.px(5), pady=0, borderwidth=0)
        return theme.paint(badge, bg=theme.BAD_SOFT, fg=theme.BAD)
