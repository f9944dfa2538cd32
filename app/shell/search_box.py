"""The search field: settings, pages, actions, runs and presets appear below it; Enter opens the selected one."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from PIL import ImageTk

from app.sections import SECTIONS
from app.sections.places import section_of
from app.shell.search import MAX_HITS, Command, SearchHit, search_all
from app.state import AppState
from app.widgets import icons, rounded_images, theme
from app.widgets.buttons import Entry, add_tooltip, handler
from app.widgets.ellipsis import fit
from app.widgets.popover_rows import draw_border
from app.widgets.text_width import text_width

WIDTH: Final = 420  # this and all sizes below in unscaled pixels
_ROW: Final = 44
_PAD: Final = 8  # around the rows
_SIDE: Final = 10  # inside a row
_HINT: Final = 30  # below them
_ICON: Final = 28  # before the texts
_FEWEST: Final = 3  # rows, however low the window
_HELP: Final = "Settings, pages, actions, runs, presets; also other trainers' names."

Hit = SearchHit | Command


class Commands(Protocol):
    """What is found besides settings: app/shell/palette.py."""

    def read_runs(self, done: Callable[[], object]) -> None: ...
    def commands(self) -> list[Command]: ...


class SearchBox(tk.Frame):
    """A text field with a drop-down list of hits; `focus_search` lists the first commands before anything is typed."""

    def __init__(self, parent: tk.Misc, state: AppState, palette: Commands) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state, self._palette = state, palette
        self._commands: list[Command] = []  # of the moment at which the list was opened
        self.list: SearchList | None = None
        self.entry = Entry(
            self, self._typed, left=self._left, bg=theme.WINDOW, width=220, placeholder="Search", indent=20
        )
        self.entry.pack()
        self._icon = icons.label(self, "search", 15, theme.MUTED, theme.FIELD)
        self._icon.place(x=theme.px(9), rely=0.5, anchor="w")
        self._icon.bind("<Button-1>", handler(self.focus_search))
        line = self.entry.line
        for widget in (self._icon, line):
            add_tooltip(widget, "Go to a setting, page, run or preset, or do something (Ctrl+K).")
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
        self._palette.read_runs(self._found_runs)
        self._open()

    def set_width(self, width: int) -> None:
        """Set the width in unscaled pixels."""
        self.entry.set_width(width)

    def pressed(self, widget: object) -> None:
        """Close the list at a click elsewhere."""
        if self.list is not None and widget is not self.list and not str(widget).startswith(str(self)):
            self._close()

    def _typed(self, query: str) -> None:
        if query.strip():
            self._open()
        else:
            self._close()

    def _open(self, *, keeps_row: bool = False) -> None:
        if self.list is None:
            self._commands = self._palette.commands()
        query, family = self.entry.get(), self._state.draft.family
        options = family.options if family else ()
        hits = search_all(query, self._commands, options, self._state.draft.variant())
        self._drop(hits if query.strip() else self._commands[:MAX_HITS], keeps_row=keeps_row)

    def _found_runs(self) -> None:
        if self.list is not None:
            self._commands = self._palette.commands()
            if self.entry.get().strip():  # else none of the runs is shown
                self._open(keeps_row=True)

    def _left(self) -> None:
        self.after(150, self._close)  # a click in the list takes the focus first

    def _move(self, by: int) -> None:
        if self.list is not None:
            self.list.step(by)

    def _go(self) -> None:
        if self.list is not None:
            self._go_to(self.list.row)

    def _go_to(self, row: int) -> None:
        if self.list is None or not self.list.hits:
            return
        hit = self.list.hits[row]
        if isinstance(hit, Command) and hit.reason:
            self._state.say(hit.reason)
            return
        self._escape()
        if isinstance(hit, Command):
            hit.act()
        else:
            self._state.jump_to(hit.option.path)

    def _escape(self) -> None:
        self.entry.show("")
        self._typed("")
        self.winfo_toplevel().focus_set()

    def _close(self) -> None:
        if self.list is not None:
            self.list.destroy()
            self.list = None

    def _drop(self, hits: Sequence[Hit], *, keeps_row: bool) -> None:
        top = self.winfo_toplevel()
        if self.list is None:
            self.list = SearchList(top, self._go_to)
        right = self.winfo_rootx() - top.winfo_rootx() + self.winfo_width()
        below = self.winfo_rooty() - top.winfo_rooty() + self.winfo_height() + theme.px(4)
        self.list.show(hits, self.entry.get(), right, below, keeps_row=keeps_row)


class SearchList(tk.Canvas):
    """`chosen` is called with the number of the row that is clicked."""

    def __init__(self, parent: tk.Misc, chosen: Callable[[int], object]) -> None:
        super().__init__(parent, highlightthickness=0, borderwidth=0, takefocus=0)
        theme.paint(self, bg=theme.CARD)
        self.hits: Sequence[Hit] = ()
        self.row = 0
        self._chosen = chosen
        self._query = ""
        self._photos: list[ImageTk.PhotoImage] = []  # Tk itself keeps no reference
        self._border: list[ImageTk.PhotoImage] = []
        self.bind("<Button-1>", self._clicked)
        self.bind("<Motion>", self._pointed)

    def show(self, hits: Sequence[Hit], query: str, x: int, y: int, *, keeps_row: bool = False) -> None:
        """Show what there is room for, with the upper right corner at a place of the parent, in pixels.

        The first is selected, or with `keeps_row` what was; if that would no longer be there, the list stays as it is.
        """
        room = (self.master.winfo_height() - y - theme.px(_HINT + 3 * _PAD)) // theme.px(_ROW)
        hits, row = hits[: max(room, _FEWEST)], 0
        if keeps_row and self.hits:
            selected = self.hits[self.row].identity
            row = next((number for number, hit in enumerate(hits) if hit.identity == selected), -1)
            if row < 0:
                return
        self.hits, self.row, self._query = hits, row, query
        width, height = theme.px(WIDTH), theme.px(max(len(self.hits), 1) * _ROW + _HINT + 2 * _PAD)
        if (width, height) != (self.winfo_reqwidth(), self.winfo_reqheight()):
            self.configure(width=width, height=height)
            self.place_forget()  # so that its corners take the colours of what is under them
            self.delete("frame")
            left = max(x - width, theme.px(_PAD))
            root = self.master
            self._border = draw_border(self, (width, height), root.winfo_rootx() + left, root.winfo_rooty() + y)
            self.place(x=left, y=y)
            tk.Misc.tkraise(self)  # Canvas.tkraise raises its items instead
        self._draw()

    def step(self, by: int) -> None:
        """Highlight another row."""
        if self.hits:
            self.row = (self.row + by) % len(self.hits)
            self._draw()

    def _draw(self) -> None:
        self.delete("row")
        self._photos = []
        px, left, right = theme.px, theme.px(_PAD + _SIDE), theme.px(WIDTH - _PAD - _SIDE)
        if not self.hits:
            nothing = f"No results for “{self._query.strip()[:40]}”."
            self._write(left, px(_PAD + _ROW / 2), nothing, theme.MUTED)
        for number, hit in enumerate(self.hits):
            top = px(_PAD) + number * px(_ROW)
            if number == self.row:
                self._highlight(px(_PAD), top, px(WIDTH - 2 * _PAD), px(_ROW))
            self._draw_hit(hit, left, top, right)
        line = self.winfo_reqheight() - px(_PAD + _HINT - 4)
        self.create_line(left, line, right, line, fill=theme.resolve(theme.LINE), tags="row")
        self._write(left, line + px(_HINT / 2 + 2), _HELP, theme.FAINT, "small")
        self.tag_raise("frame")

    def _draw_hit(self, hit: Hit, left: int, top: int, right: int) -> None:
        px, ink = theme.px, theme.TEXT
        if isinstance(hit, Command):
            title, icon, kind, below = hit.title, hit.icon, hit.kind, hit.reason or hit.detail
            ink = theme.FAINT if hit.reason else ink
        else:
            icon = section_of(hit.option.path)
            title, kind = hit.option.title, SECTIONS[icon][0]
            below = f"also known as {hit.alias}" if hit.alias else hit.option.help.split(". ")[0]
        self._photos.append(icons.image(icon, 16, theme.MUTED))
        self.create_image(left, top + px(22), anchor="w", image=self._photos[-1], tags="row")
        left += px(_ICON)
        strong, small = theme.tk_font("strong"), theme.tk_font("small")
        room = right - left - text_width(self, kind, small) - px(_SIDE)
        self._write(left, top + px(15), fit(self, title, strong, room), ink, "strong")
        self._write(right, top + px(15), kind, theme.MUTED, "small", "e")
        self._write(left, top + px(32), fit(self, below, small, right - left), theme.MUTED, "small")

    def _write(
        self,
        x: int,
        y: int,
        label: str,
        colour: theme.Colour,
        font: theme.FontName = "body",
        anchor: Literal["w", "e"] = "w",
    ) -> None:
        fill = theme.resolve(colour)
        self.create_text(x, y, anchor=anchor, text=label, font=theme.tk_font(font), fill=fill, tags="row")

    def _highlight(self, x: int, y: int, width: int, height: int) -> None:
        soft, card = theme.resolve(theme.ACCENT_SOFT), theme.resolve(theme.CARD)
        photo = rounded_images.rounded(self, width, height, theme.px(theme.RADIUS), fill=soft, line=soft, bg=card)
        self._photos.append(photo)
        self.create_image(x, y, anchor="nw", image=photo, tags="row")

    def _row_at(self, y: int) -> int:
        """The number of the row at a height of the canvas; -1 if there is none."""
        row = (y - theme.px(_PAD)) // theme.px(_ROW)
        return row if 0 <= row < len(self.hits) else -1

    def _pointed(self, event: tk.Event[tk.Canvas]) -> None:
        if (row := self._row_at(event.y)) not in (-1, self.row):
            self.row = row
            self._draw()

    def _clicked(self, event: tk.Event[tk.Canvas]) -> None:
        if (row := self._row_at(event.y)) >= 0:
            self._chosen(row)
