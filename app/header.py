"""The line above the sections: which file this is, presets, open, save, undo, search, simple or advanced."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Protocol

from app import look, texts
from app.controls import Button, Segments, frame, text
from app.cut import cut
from app.search_box import SearchBox
from app.state import AppState

HEIGHT = 56
WIDE_FROM = 980
NAMES_FROM = 690


class Actions(Protocol):
    """What the header's buttons do."""

    def open_presets(self) -> None: ...
    def open_files(self) -> None: ...
    def save(self) -> object: ...
    def open_save_menu(self) -> None: ...
    def undo(self) -> None: ...
    def redo(self) -> None: ...
    def set_advanced(self, advanced: bool) -> None: ...


class Header(tk.Frame):
    """Buttons keep their places; only the file's name changes."""

    def __init__(self, parent: tk.Misc, state: AppState, actions: Actions) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0, height=look.px(HEIGHT))
        look.paint(self, bg=look.WINDOW)
        self.pack_propagate(False)
        self._state = state
        names = frame(self, look.WINDOW)  # of a fixed width, so that the buttons keep their places
        names.pack_propagate(False)
        self._file = text(names, "", "strong", on=look.WINDOW)
        self._file.pack(anchor="w")
        self._status = text(names, "", "small", colour=look.MUTED, on=look.WINDOW)
        self._status.pack(anchor="w")
        self._labels: list[tuple[Button, str]] = []
        self.presets = self._button(texts.PRESETS, "presets", actions.open_presets, "Ctrl+P")
        self.open = self._button(texts.OPEN, "open", actions.open_files, "Ctrl+O")
        self.save = self._button(texts.SAVE, "save", actions.save, "Ctrl+S")
        self.save_more = Button(
            self, icon="down", command=actions.open_save_menu, style="quiet", width=24, hint=texts.SAVE_AS
        )
        self.undo = Button(self, icon="undo", command=actions.undo, style="quiet", hint=f"{texts.UNDO} (Ctrl+Z)")
        self.redo = Button(self, icon="redo", command=actions.redo, style="quiet", hint=f"{texts.REDO} (Ctrl+Y)")
        self.search = SearchBox(self, state)
        self.level = Segments(
            self, [texts.SIMPLE, texts.ADVANCED], lambda word: actions.set_advanced(word == texts.ADVANCED)
        )
        names.pack(side="left", padx=(look.px(24), look.px(16)))
        self.level.pack(side="right", padx=(8, 24))
        self.search.pack(side="right", padx=(look.px(8), look.px(8)))
        for button in (self.presets, self.open, self.save, self.save_more, self.undo, self.redo):
            button.pack(side="left", padx=0 if button is self.save_more else 3)
        self._names = names
        state.subscribe("draft", self.refresh, self)
        self.refresh()
        self._wide: bool | None = None
        self.bind("<Configure>", lambda event: self._fit(event.width))

    def refresh(self) -> None:
        """Show the file and what can be undone."""
        draft = self._state.draft
        name = draft.file.name if draft.file else draft.preset or texts.UNTITLED
        self._set(self._file, cut(name, 22))
        dirty = draft.is_dirty
        status = (
            texts.UNSAVED
            if dirty
            else texts.SAVED
            if draft.file
            else texts.PRESET
            if draft.preset
            else texts.NOT_SAVED_YET
        )
        self._set(self._status, f"●  {status}" if dirty else status)
        look.paint(self._status, fg=look.WARN if dirty else look.MUTED)
        for button, possible in ((self.undo, draft.can_undo), (self.redo, draft.can_redo)):
            state = "normal" if possible else "disabled"
            if button.cget("state") != state:
                button.configure(state=state)
        self.level.set(texts.ADVANCED if self._state.advanced else texts.SIMPLE)

    def _button(self, words: str, icon: str, command: Callable[[], object], key: str) -> Button:
        button = Button(self, words, command, icon=icon, style="quiet", hint=f"{words} ({key})", width=30)
        self._labels.append((button, words))
        return button

    def _fit(self, width: int) -> None:
        wide = width >= look.px(WIDE_FROM)
        if wide != self._wide:
            self._wide = wide
            for button, words in self._labels:
                button.configure(text=words if wide else "")
            self.search.set_width(220 if wide else 120)
            self._names.configure(width=look.px(176 if wide else 140), height=look.px(36))
        room = width >= look.px(NAMES_FROM)  # without them, the window's own title still says what is open
        if room != bool(self._names.winfo_manager()):
            if room:
                self._names.pack(side="left", padx=(look.px(24), look.px(16)), before=self.presets)
            else:
                self._names.pack_forget()

    def _set(self, label: tk.Label, words: str) -> None:
        if label.cget("text") != words:
            label.configure(text=words)
