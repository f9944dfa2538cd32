"""The search field: settings that fit come up below it while typing; Enter shows the chosen one."""

from __future__ import annotations

import tkinter as tk

from app import icons, look, texts
from app.controls import Entry, then
from app.cut import cut
from app.search import Hit, search
from app.state import AppState

ROW = 44
WIDTH = 420


class SearchBox(tk.Frame):
    """A line with a list that drops down from it."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        look.paint(self, bg=look.WINDOW)
        self._state = state
        self._hits: list[Hit] = []
        self._chosen = 0
        self._list: tk.Canvas | None = None
        self._pictures: list[object] = []
        self.entry = Entry(
            self, self._typed, left=self._left, on=look.WINDOW, width=220, placeholder=texts.SEARCH, indent=20
        )
        self.entry.pack()
        self._icon = icons.label(self, "search", 15, look.MUTED, look.FIELD)
        self._icon.place(x=look.px(9), rely=0.5, anchor="w")
        self._icon.bind("<Button-1>", lambda event: self.focus_search())
        line = self.entry.line
        for key, action in {
            "<Down>": lambda: self._move(1),
            "<Up>": lambda: self._move(-1),
            "<Return>": self._go,
            "<KP_Enter>": self._go,
            "<Escape>": self._escape,
        }.items():
            line.bind(key, then(action))

    def focus_search(self) -> None:
        """Begin to type."""
        self.entry.focus_set()
        self.entry.select_range(0, tk.END)
        self._typed(self.entry.get())

    def set_width(self, width: int) -> None:
        """Take more or less room."""
        self.entry.set_width(width)

    def _typed(self, words: str) -> None:
        family = self._state.draft.family
        self._hits = search(words, family.options if family else (), self._state.draft.variant())
        self._chosen = 0
        if words.strip():
            self._drop()
        else:
            self._close()

    def _left(self) -> None:
        self.after(150, self._close)  # a click into the list takes the focus first

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
            look.paint(self._list, bg=look.CARD, highlightbackground=look.FIELD_LINE)
            self._list.bind("<Button-1>", self._clicked)
            self._list.bind("<Motion>", self._pointed)
        width = look.px(WIDTH)
        x = self.winfo_rootx() - top.winfo_rootx() + self.winfo_width() - width
        y = self.winfo_rooty() - top.winfo_rooty() + self.winfo_height() + look.px(4)
        self._list.place(x=max(x, 8), y=y, width=width, height=look.px(max(len(self._hits), 1) * ROW + 32))
        tk.Misc.tkraise(self._list)  # a canvas has another "raise"
        self._draw()

    def _draw(self) -> None:
        canvas = self._list
        if canvas is None:
            return
        canvas.delete("all")
        self._pictures.clear()
        px, width = look.px, look.px(WIDTH)
        if not self._hits:
            nothing = texts.SEARCH_NOTHING.format(words=self.entry.get().strip()[:40])
            canvas.create_text(px(16), px(22), anchor="w", text=nothing, font=look.tk_font(), fill=look.now(look.MUTED))
        for row, hit in enumerate(self._hits):
            y = row * px(ROW)
            if row == self._chosen:
                canvas.create_rectangle(0, y, width, y + px(ROW), fill=look.now(look.ACCENT_SOFT), width=0)
            canvas.create_text(
                px(16),
                y + px(15),
                anchor="w",
                text=hit.option.title,
                font=look.tk_font("strong"),
                fill=look.now(look.TEXT),
            )
            section = hit.option.section or texts.SECTIONS["model"][0]
            canvas.create_text(
                width - px(16),
                y + px(15),
                anchor="e",
                text=section,
                font=look.tk_font("small"),
                fill=look.now(look.MUTED),
            )
            below = texts.SEARCH_FORMER.format(name=hit.former) if hit.former else hit.option.help.split(". ")[0]
            canvas.create_text(
                px(16),
                y + px(32),
                anchor="w",
                text=cut(below, 62),
                font=look.tk_font("small"),
                fill=look.now(look.MUTED),
            )
        bottom = max(len(self._hits), 1) * px(ROW)
        canvas.create_line(0, bottom, width, bottom, fill=look.now(look.LINE))
        canvas.create_text(
            px(16),
            bottom + px(16),
            anchor="w",
            text=texts.SEARCH_HINT,
            font=look.tk_font("small"),
            fill=look.now(look.FAINT),
        )

    def _pointed(self, event: tk.Event[tk.Canvas]) -> None:
        row = event.y // look.px(ROW)
        if row != self._chosen and row < len(self._hits):
            self._chosen = row
            self._draw()

    def _clicked(self, event: tk.Event[tk.Canvas]) -> None:
        if event.y // look.px(ROW) < len(self._hits):
            self._chosen = event.y // look.px(ROW)
            self._go()
