"""The bar above the sections: file name, presets, open, save, undo, search, simple or advanced."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from app.shell.search_box import Commands, SearchBox
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Overflow, Segments, add_tooltip, frame, text
from app.widgets.ellipsis import truncate

HEIGHT = 56
WIDE_FROM = 980
NAMES_FROM = 690
NAMES_WIDTH = {True: 176, False: 140}  # whether the header is wide
MOST_NAMES_WIDTH = 260  # what a wider one leaves goes to the names, until the longest preset's title fits
NAMES_CHARACTER = 8  # unscaled pixels of a wide one
SEARCH_WIDTH = {True: 220, False: 120}
LEVEL_FROM = 480  # below that, it is in the menu


class HeaderActions(Protocol):
    """What the header's buttons and its search do."""

    @property
    def palette(self) -> Commands: ...
    def open_presets(self) -> None: ...
    def open_files(self) -> None: ...
    def save(self) -> object: ...
    def open_save_menu(self) -> None: ...
    def undo(self) -> None: ...
    def redo(self) -> None: ...
    def set_advanced(self, advanced: bool) -> None: ...


class Header(tk.Frame):
    """Buttons keep their positions; only the file name changes."""

    def __init__(self, parent: tk.Misc, state: AppState, actions: HeaderActions) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0, height=theme.px(HEIGHT))
        theme.paint(self, bg=theme.WINDOW)
        self.pack_propagate(False)
        self._state, self._actions = state, actions
        # its width goes by the window's, so that the buttons keep their positions
        names = frame(self, theme.WINDOW)
        names.pack_propagate(False)
        self._file = text(names, "", "strong", bg=theme.WINDOW)
        self._file.pack(anchor="w")
        self._status = text(names, "", "small", colour=theme.MUTED, bg=theme.WINDOW)
        self._status.pack(anchor="w")
        add_tooltip(self._status, lambda: self._state.second_window)
        self._labels: list[tuple[Button, str]] = []
        self.presets = self._button("Presets", "presets", actions.open_presets, "Ctrl+P")
        self.open = self._button("Open", "open", actions.open_files, "Ctrl+O")
        self.save = self._button("Save", "save", actions.save, "Ctrl+S")
        self.save_more = Button(
            self, icon="down", command=actions.open_save_menu, style="quiet", width=24, tooltip="Save as…"
        )
        self.undo = Button(self, icon="undo", command=actions.undo, style="quiet", tooltip="Undo (Ctrl+Z)")
        self.redo = Button(self, icon="redo", command=actions.redo, style="quiet", tooltip="Redo (Ctrl+Y)")
        self.search = SearchBox(self, state, actions.palette)
        self.level = Segments(self, ["Simple", "Advanced"], lambda word: actions.set_advanced(word == "Advanced"))
        names.pack(side="left", padx=(theme.px(24), theme.px(16)))
        self.level.pack(side="right", padx=(8, 24))
        self.search.pack(side="right", padx=(theme.px(8), theme.px(8)))
        for button in (self.presets, self.open, self.save, self.save_more, self.undo, self.redo):
            button.pack(side="left", padx=0 if button is self.save_more else 3)
        self._names, self._names_width = names, NAMES_WIDTH[True]
        words = {**dict(self._labels), self.save_more: "Save as…", self.undo: "Undo", self.redo: "Redo"}
        self.overflow = Overflow(self, words, also=self._level_entry)
        state.subscribe("draft", self.refresh, self)
        self.refresh()
        self._wide: bool | None = None
        self.bind("<Configure>", lambda event: self._fit(event.width))

    def refresh(self) -> None:
        """Update the file name, status and buttons."""
        draft = self._state.draft
        self._set(self._file, truncate(draft.title, self._names_width // NAMES_CHARACTER))
        dirty = draft.is_dirty
        status = (
            "unsaved changes"
            if dirty
            else "saved"
            if draft.file
            else "copy of a preset"
            if draft.preset
            else "not saved yet"
        )
        if self._state.second_window:
            status = "unsaved, 2nd window" if dirty else "second window"
        self._set(self._status, f"●  {status}" if dirty else status)
        theme.paint(self._status, fg=theme.WARN if dirty else theme.MUTED)
        for button, enabled in ((self.undo, draft.can_undo), (self.redo, draft.can_redo)):
            state = "normal" if enabled else "disabled"
            if button.cget("state") != state:
                button.configure(state=state)
        self.level.set("Advanced" if self._state.advanced else "Simple")

    def _level_entry(self) -> Sequence[tuple[str, Callable[[], object]]]:
        if self.level.winfo_manager():
            return ()
        other = "Simple" if self._state.advanced else "Advanced"
        return [(f"{other} settings", partial(self._actions.set_advanced, other == "Advanced"))]

    def _button(self, label: str, icon: str, command: Callable[[], object], key: str) -> Button:
        button = Button(self, label, command, icon=icon, style="quiet", tooltip=f"{label} ({key})", width=30)
        self._labels.append((button, label))
        return button

    def _fit(self, width: int) -> None:
        wide = width >= theme.px(WIDE_FROM)
        if wide != self._wide:
            self._wide = wide
            for button, label in self._labels:
                button.configure(text=label if wide else "")
            self.search.set_width(SEARCH_WIDTH[wide])
        spare = int(width / theme.px(100) * 100) - WIDE_FROM
        names_width = min(NAMES_WIDTH[wide] + max(0, spare), MOST_NAMES_WIDTH)
        self._names.configure(width=theme.px(names_width), height=theme.px(36))
        if names_width != self._names_width:
            self._names_width = names_width
            self.refresh()
        room = width >= theme.px(NAMES_FROM)  # otherwise only the window title shows what is open
        if room != bool(self._names.winfo_manager()):
            if room:
                self._names.pack(
                    side="left", padx=(theme.px(24), theme.px(16)), before=self.overflow.place_of(self.presets)
                )
            else:
                self._names.pack_forget()
        has_level = width >= theme.px(LEVEL_FROM)
        if has_level != bool(self.level.winfo_manager()):
            if has_level:
                self.level.pack(side="right", padx=(8, 24), before=self.search)
            else:
                self.level.pack_forget()
        beside = theme.px(SEARCH_WIDTH[self._wide] + 16) + has_level * (self.level.full_width + theme.px(32))
        beside += theme.px(self._names_width + 40) if room else 0
        self.overflow.fit(width - beside, menu=not has_level)

    def _set(self, label: tk.Label, content: str) -> None:
        if label.cget("text") != content:
            label.configure(text=content)
