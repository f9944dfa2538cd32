"""The sections, with a mark where something is wrong, and the window's own settings below."""

from __future__ import annotations

import tkinter as tk
from collections import Counter
from collections.abc import Callable

import customtkinter as ctk

from app import icons, look, texts
from app.controls import Button, frame, text
from app.hint import Hint
from app.state import AppState
from modules.config import TrainConfig, find_option

WIDTH = 184
NARROW = 60
TALL = 480  # unscaled pixels of height that leave room for the name and wide entries
ENTRY_HEIGHT = 36
LOW_ENTRY_HEIGHT = 30
SECTION_OF = {
    "Model": "model",
    "Data": "data",
    "Training": "training",
    "Optimizer": "training",
    "Adapters": "adapters",
    "Multi-GPU": "multi_gpu",
    "Sampling": "sampling",
    "Output": "output",
}


def section_of(path: str) -> str:
    """The section of the window that a setting stands in."""
    option = find_option(TrainConfig, path)
    first = (
        option or find_option(TrainConfig, path.split(".")[0]) or find_option(TrainConfig, f"{path.split('.')[0]}.name")
    )
    return SECTION_OF.get(first.section, "model") if first else "model"


class Sidebar(tk.Frame):
    """One entry for each section. Up and Down move between them."""

    def __init__(self, parent: tk.Misc, state: AppState, chosen: Callable[[str], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0, width=look.px(WIDTH))
        look.paint(self, bg=look.SIDEBAR)
        self.pack_propagate(False)
        self._state = state
        self._chosen = chosen
        self._selected = ""
        self._narrow: bool | None = None
        self._tall = True
        look.paint(tk.Frame(self, height=look.px(8)), bg=look.SIDEBAR).pack()
        self._brand = self._make_brand()
        self.entries = {name: self._entry(name) for name in texts.SECTIONS}
        self._badges = {name: self._badge(entry) for name, entry in self.entries.items()}
        self._counts: dict[str, int] = {}
        self.bottom = frame(self, look.SIDEBAR)
        self.bottom.pack(side="bottom", fill="x", padx=look.px(10), pady=look.px(10))
        self.bind("<Configure>", lambda event: self._fit(event.height))
        state.subscribe("faults", self.refresh, self)
        self.refresh()

    def select(self, name: str) -> None:
        """Mark a section as the present one."""
        for other in (self._selected, name):
            if other:
                here = other == name
                ink = look.ACCENT_TEXT if here else look.TEXT
                self.entries[other].configure(
                    fg_color=look.ACCENT_SOFT if here else look.SIDEBAR,
                    hover_color=look.ACCENT_SOFT if here else look.HOVER,
                    text_color=ink,
                    image=icons.ctk_image(other, 18, ink if here else look.MUTED),
                )
        self._selected = name

    def refresh(self) -> None:
        """Show how much is wrong in each section."""
        counts = Counter(section_of(fault.path) for fault in self._state.draft.faults)
        if counts == self._counts:
            return
        self._counts = counts
        for name, badge in self._badges.items():
            if not counts[name]:
                badge.place_forget()
            elif self._narrow:  # a dot beside the icon
                badge.configure(text="")
                badge.place(relx=1, x=-look.px(4), y=look.px(4), width=look.px(7), height=look.px(7), anchor="ne")
            else:
                badge.configure(text=str(counts[name]))
                size = look.px(20)
                badge.place(relx=1, x=-look.px(10), rely=0.5, width=size, height=size, anchor="e", y=0)
            look.paint(badge, bg=look.BAD if self._narrow else look.BAD_SOFT)

    def narrow(self, narrow: bool) -> None:
        """Icons only, where the window is small."""
        if narrow == self._narrow:
            return
        self._narrow = narrow
        self.configure(width=look.px(NARROW if narrow else WIDTH))
        for name, entry in self.entries.items():
            entry.configure(text="" if narrow else f"  {texts.SECTIONS[name][0]}", anchor="center" if narrow else "w")
        if narrow:
            self._name.pack_forget()
        else:
            self._name.pack(side="left", padx=look.px(8))
        self._counts = {}
        self.refresh()

    def _fit(self, height: int) -> None:
        """A low window leaves out the name and draws the entries closer together."""
        tall = height >= look.px(TALL)
        if tall == self._tall:
            return
        self._tall = tall
        if tall:
            self._brand.pack(fill="x", padx=look.px(16), pady=(look.px(8), look.px(16)), before=self.entries["model"])
        else:
            self._brand.pack_forget()
        for entry in self.entries.values():
            entry.configure(height=ENTRY_HEIGHT if tall else LOW_ENTRY_HEIGHT)
            entry.pack_configure(pady=look.px(2) if tall else 0)

    def _make_brand(self) -> tk.Frame:
        brand = frame(self, look.SIDEBAR)
        brand.pack(fill="x", padx=look.px(16), pady=(look.px(8), look.px(16)))
        icons.label(brand, "brand", 28, look.ACCENT_TEXT, look.SIDEBAR).pack(side="left")
        self._name = text(brand, texts.APP, "brand", on=look.SIDEBAR)
        self._name.pack(side="left", padx=look.px(8))
        return brand

    def _entry(self, name: str) -> Button:
        entry = Button(
            self,
            f"  {texts.SECTIONS[name][0]}",
            lambda: self._chosen(name),
            icon=name,
            style="quiet",
            on=look.SIDEBAR,
            height=ENTRY_HEIGHT,
            anchor="w",
            hint="",
            width=40,
        )
        Hint.attach(entry, lambda: texts.SECTIONS[name][0] if self._narrow else "")
        entry.configure(image=icons.ctk_image(name, 18, look.MUTED))
        entry.pack(fill="x", padx=10, pady=2)
        names = list(texts.SECTIONS)
        for key, by in (("<Up>", -1), ("<Down>", 1)):
            to = names[(names.index(name) + by) % len(names)]
            entry._canvas.bind(key, lambda event, to=to: self.entries[to]._canvas.focus_set())
        return entry

    def _badge(self, entry: ctk.CTkButton) -> tk.Label:
        badge = tk.Label(entry, font=look.tk_font("small"), padx=look.px(5), pady=0, borderwidth=0)
        return look.paint(badge, bg=look.BAD_SOFT, fg=look.BAD)
