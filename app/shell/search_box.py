"""The search field: matching settings appear below it while typing; Enter jumps to the selected one."""

from __future__ import annotations

import tkinter as tk

from app.shell.search import SearchHit, search
from app.shell.search_list import SearchList
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Entry, handler


class SearchBox(tk.Frame):
    """A text field with a drop-down list of hits."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state = state
        self._hits: list[SearchHit] = []
        self.list: SearchList | None = None
        self.entry = Entry(
            self, self._typed, left=self._left, bg=theme.WINDOW, width=220, placeholder="Search", indent=20
        )
        self.entry.pack()
        self._icon = icons.label(self, "search", 15, theme.MUTED, theme.FIELD)
        self._icon.place(x=theme.px(9), rely=0.5, anchor="w")
        self._icon.bind("<Button-1>", handler(self.focus_search))
        line = self.entry.line
        for key, action in {
            "<Down>": lambda: self._move(1),
            "<Up>": lambda: self._move(-1),
            "<Return>": self._go,
            "<KP_Enter>": self._go,
            "<Escape>": self._escape,
        }.items():
            line.bind(key, handler(action))

    def focus_search(self) -> None:
        """Focus the field and select its text."""
        self.entry.focus_set()
        self.entry.select_range(0, tk.END)
        self._typed(self.entry.get())

    def set_width(self, width: int) -> None:
        """Set the width in unscaled pixels."""
        self.entry.set_width(width)

    def _typed(self, query: str) -> None:
        family = self._state.draft.family
        self._hits = search(query, family.options if family else (), self._state.draft.variant())
        if query.strip():
            self._drop()
        else:
            self._close()

    def _left(self) -> None:
        self.after(150, self._close)  # a click in the list takes the focus first

    def _move(self, by: int) -> None:
        if self.list is not None:
            self.list.step(by)

    def _go(self) -> None:
        if self.list is not None:
            self._go_to(self.list.row)

    def _go_to(self, row: int) -> None:
        if self._hits:
            path = self._hits[row].option.path
            self._escape()
            self._state.jump_to(path)

    def _escape(self) -> None:
        self.entry.show("")
        self._typed("")
        self.winfo_toplevel().focus_set()

    def _close(self) -> None:
        if self.list is not None:
            self.list.destroy()
            self.list = None

    def _drop(self) -> None:
        top = self.winfo_toplevel()
        if self.list is None:
            self.list = SearchList(top, self._go_to)
        right = self.winfo_rootx() - top.winfo_rootx() + self.winfo_width()
        below = self.winfo_rooty() - top.winfo_rooty() + self.winfo_height() + theme.px(4)
        self.list.show(self._hits, self.entry.get(), right, below)
