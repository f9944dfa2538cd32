"""The search field: matching settings appear below it while typing; Enter jumps to the selected one."""

from __future__ import annotations

import tkinter as tk

from app.sections import SECTIONS
from app.sections.places import section_of
from app.shell.search import SearchHit, search
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Entry, handler
from app.widgets.ellipsis import fit

ROW = 44
WIDTH = 420


class SearchBox(tk.Frame):
    """A text field with a drop-down list of hits."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state = state
        self._hits: list[SearchHit] = []
        self._chosen = 0
        self._list: tk.Canvas | None = None
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
        self._chosen = 0
        if query.strip():
            self._drop()
        else:
            self._close()

    def _left(self) -> None:
        self.after(150, self._close)  # a click in the list takes the focus first

    def _move(self, by: int) -> None:
        if self._hits:
            self._chosen = (self._chosen + by) % len(self._hits)
            self._draw()

    def _go(self) -> None:
        if self._hits:
            path = self._hits[self._chosen].option.path
            self._escape()
            self._state.jump_to(path)

    def _escape(self) -> None:
        self.entry.show("")
        self._typed("")
        self.winfo_toplevel().focus_set()

    def _close(self) -> None:
        if self._list is not None:
            self._list.destroy()
            self._list = None

    def _drop(self) -> None:
        top = self.winfo_toplevel()
        if self._list is None:
            self._list = tk.Canvas(top, highlightthickness=1, borderwidth=0, takefocus=0)
            theme.paint(self._list, bg=theme.CARD, highlightbackground=theme.EDGE)
            self._list.bind("<Button-1>", self._clicked)
            self._list.bind("<Motion>", self._pointed)
        width = theme.px(WIDTH)
        x = self.winfo_rootx() - top.winfo_rootx() + self.winfo_width() - width
        y = self.winfo_rooty() - top.winfo_rooty() + self.winfo_height() + theme.px(4)
        self._list.place(x=max(x, 8), y=y, width=width, height=theme.px(max(len(self._hits), 1) * ROW + 32))
        tk.Misc.tkraise(self._list)  # Canvas.tkraise raises its items instead
        self._draw()

    def _draw(self) -> None:
        canvas = self._list
        if canvas is None:
            return
        canvas.delete("all")
        px, width = theme.px, theme.px(WIDTH)
        if not self._hits:
            nothing = f"No results for “{self.entry.get().strip()[:40]}”."
            canvas.create_text(
                px(16), px(22), anchor="w", text=nothing, font=theme.tk_font(), fill=theme.resolve(theme.MUTED)
            )
        for row, hit in enumerate(self._hits):
            y = row * px(ROW)
            if row == self._chosen:
                canvas.create_rectangle(0, y, width, y + px(ROW), fill=theme.resolve(theme.ACCENT_SOFT), width=0)
            canvas.create_text(
                px(16),
                y + px(15),
                anchor="w",
                text=hit.option.title,
                font=theme.tk_font("strong"),
                fill=theme.resolve(theme.TEXT),
            )
            canvas.create_text(
                width - px(16),
                y + px(15),
                anchor="e",
                text=SECTIONS[section_of(hit.option.path)][0],
                font=theme.tk_font("small"),
                fill=theme.resolve(theme.MUTED),
            )
            below = f"also known as {hit.alias}" if hit.alias else hit.option.help.split(". ")[0]
            canvas.create_text(
                px(16),
                y + px(32),
                anchor="w",
                text=fit(self, below, theme.tk_font("small"), width - px(32)),
                font=theme.tk_font("small"),
                fill=theme.resolve(theme.MUTED),
            )
        bottom = max(len(self._hits), 1) * px(ROW)
        canvas.create_line(0, bottom, width, bottom, fill=theme.resolve(theme.LINE))
        canvas.create_text(
            px(16),
            bottom + px(16),
            anchor="w",
            text="Enter opens the setting. Other trainers' names work, too.",
            font=theme.tk_font("small"),
            fill=theme.resolve(theme.FAINT),
        )

    def _pointed(self, event: tk.Event[tk.Canvas]) -> None:
        row = event.y // theme.px(ROW)
        if row != self._chosen and row < len(self._hits):
            self._chosen = row
            self._draw()

    def _clicked(self, event: tk.Event[tk.Canvas]) -> None:
        if event.y // theme.px(ROW) < len(self._hits):
            self._chosen = event.y // theme.px(ROW)
            self._go()
