"""Menus as popovers: rounded, with descriptions and shortcuts, usable with the keyboard alone.

The methods that fill and open one have the names and arguments of tk.Menu's.
"""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Literal

from app.widgets import theme
from app.widgets.own_events import bind_own
from app.widgets.popover_rows import PopoverRows, Row
from app.widgets.tooltip import Tooltip
from modules.files import printable

EDGE: Final = 8  # unscaled pixels that stay free at the edges of the screen
TYPE_AHEAD_S: Final = 0.9  # letters typed within this time are one word

State = Literal["normal", "disabled"]


@dataclass(frozen=True)
class Anchor:
    """Where a popover opens: its upper left corner, or its lower left one above `above` if there is more room."""

    x: int
    y: int
    above: int


class PopupMenu:
    """Fill it, then `tk_popup` or `open_below`. Arrows, Home, End, Page keys, letters, Return and Escape work."""

    head: ClassVar[int] = 0  # unscaled height of what stands above the entries

    def __init__(self, parent: tk.Misc) -> None:
        self._parent = parent
        self.rows: list[Row] = []
        self.window: tk.Toplevel | None = None
        self._drawn: PopoverRows
        self._typed = ("", 0.0)
        self._before: tk.Misc | None = None  # what had the focus
        self.is_opening = False  # by the event that is still being handled
        self.on_close: Callable[[], object] = lambda: None

    def add_command(
        self,
        label: str,
        command: Callable[[], object] = lambda: None,
        state: State = "normal",
        accelerator: str = "",
        *,
        detail: str = "",
        icon: str = "",
        is_chosen: bool = False,
        words: str = "",
    ) -> None:
        """Append an entry; `detail` stands below the label, `accelerator` at the right, `icon` or a tick before it. A
        search finds it by these and by `words`.
        """
        shown = printable(label, mask=False)  # on one line
        self.rows.append(Row(shown, command, state == "normal", accelerator, detail, icon, is_chosen, words=words))

    def add_heading(self, title: str) -> None:
        """Append the title of the entries that follow."""
        self.rows.append(Row(title, is_heading=True))

    def add_separator(self) -> None:
        """Append a line, unless it would be the first entry or follow another."""
        if self.rows and not self.rows[-1].is_separator:
            self.rows.append(Row(""))

    def labels(self) -> list[str]:
        """The texts of the entries."""
        return [row.label for row in self.rows if not row.is_separator and not row.is_heading]

    def open_below(self, widget: tk.Misc, gap: int = 4) -> None:
        """Open at the lower edge of a widget, at least as wide as it, or above it if there is no room."""
        top, below = widget.winfo_rooty(), widget.winfo_rooty() + widget.winfo_height()
        self._open(Anchor(widget.winfo_rootx(), below + theme.px(gap), top - theme.px(gap)), widget.winfo_width())

    def tk_popup(self, x: int, y: int) -> None:
        """Open at a place of the screen, moved so that all of it is on the screen."""
        self._open(Anchor(x, y, y))

    def choose(self, label: str) -> None:
        """Run the command of an entry, as a click does. Raises KeyError if there is none that is enabled."""
        for row in self.rows:
            if row.label == label and row.can_be_chosen:
                self._run(row)
                return
        raise KeyError(label)

    def close(self) -> None:
        """Close it; the keyboard goes back to where it was."""
        window, self.window = self.window, None
        if window is None:
            return
        had_focus = _is_inside(str(window.tk.call("focus")), window)
        window.destroy()
        if had_focus and self._before is not None and self._before.winfo_exists():
            self._before.focus_force()
        self.on_close()

    def _open(self, place: Anchor, at_least: int = 0) -> None:
        if self.rows and self.rows[-1].is_separator:
            self.rows.pop()
        owner = self._parent.winfo_toplevel()
        _close_open(owner)
        Tooltip.of(owner).hide()
        self._before = _focused(owner)
        # a child of its owner: a modal dialog's grab lets it have the pointer
        window = self.window = tk.Toplevel(owner)
        window.withdraw()
        window.overrideredirect(True)
        theme.paint(window, bg=theme.CARD)
        tallest = window.winfo_screenheight() * 2 // 3
        self._drawn = PopoverRows(window, self.rows, at_least, tallest, self._run, head=theme.px(self.head))
        self._drawn.pack()
        keyboard = self._add_head()
        self._place(window, place)
        self._bind(window, owner, keyboard)
        window.deiconify()
        window.lift()
        window.focus_force()
        keyboard.focus_force()
        self.is_opening = True
        window.after_idle(setattr, self, "is_opening", False)
        owner.nametowidget(".").__dict__["open_popover_"] = self

    def _add_head(self) -> tk.Misc:
        """Put what stands above the entries there; returns what takes the keyboard."""
        self._drawn.bind("<space>", lambda event: _stop(self._enter))
        self._drawn.bind("<Key>", self._type_ahead)
        return self._drawn

    def _place(self, window: tk.Toplevel, place: Anchor) -> None:
        width, height = self._drawn.extent
        right, bottom = self._bounds(window, width, height)
        x = max(min(place.x, right - width), theme.px(EDGE))
        y = place.y
        if y + height > bottom:
            y = min(place.above, bottom) - height
        if y < theme.px(EDGE):  # no room above
            y = max(min(place.y, window.winfo_screenheight() - theme.px(EDGE) - height), theme.px(EDGE))
        self._drawn.draw_frame(x, y)
        window.geometry(f"{width}x{height}+{x}+{y}")

    def _bounds(self, window: tk.Toplevel, width: int, height: int) -> tuple[int, int]:
        """The furthest right and bottom edge: those of the window that it belongs to if it fits, or of the screen."""
        owner, edge = self._parent.winfo_toplevel(), theme.px(EDGE)
        right, bottom = window.winfo_screenwidth() - edge, window.winfo_screenheight() - edge
        if owner.winfo_width() > 2 * width:
            right = min(right, owner.winfo_rootx() + owner.winfo_width() - edge)
        if owner.winfo_height() > height + theme.px(60):
            bottom = min(bottom, owner.winfo_rooty() + owner.winfo_height() - edge)
        return right, bottom

    def _bind(self, window: tk.Toplevel, owner: tk.Misc, keyboard: tk.Misc) -> None:
        keys: dict[str, Callable[[], object]] = {
            "<Down>": partial(self._drawn.step, 1),
            "<Up>": partial(self._drawn.step, -1),
            "<Next>": partial(self._drawn.step, 8, wraps=False),
            "<Prior>": partial(self._drawn.step, -8, wraps=False),
            "<Home>": partial(self._drawn.select_end, 1),
            "<End>": partial(self._drawn.select_end, -1),
            "<Return>": self._enter,
            "<KP_Enter>": self._enter,
            "<Escape>": self.close,
            "<Tab>": self.close,
        }
        for key, action in keys.items():
            keyboard.bind(key, lambda event, action=action: _stop(action))  # type: ignore[misc]
        keyboard.bind("<FocusOut>", lambda event: window.after(30, self._close_if_left), add="+")
        _watch(owner)

    def _enter(self) -> None:
        if (row := self._drawn.selected) is not None:
            self._run(row)

    def _run(self, row: Row) -> None:
        self.close()
        row.command()

    def _type_ahead(self, event: tk.Event[tk.Misc]) -> str:
        if not event.char or not event.char.isprintable() or int(event.state) & 0xC:  # with Control or Alt
            return ""
        word, typed_at = self._typed
        now = time.monotonic()
        word = (word if now - typed_at < TYPE_AHEAD_S else "") + event.char.lower()
        if not self._drawn.select_start(word) and len(set(word)) == 1:  # the same letter again: the next match
            word = word[0]
            self._drawn.select_start(word, after=True)
        self._typed = (word, now)
        return "break"

    def _close_if_left(self) -> None:
        """Another widget or program has the keyboard now."""
        if self.window is not None and not _is_inside(str(self.window.tk.call("focus")), self.window):
            self.close()


def _is_inside(name: str, window: tk.Misc) -> bool:
    """Whether the widget of this name is the window or part of it."""
    return name == str(window) or name.startswith(f"{window}.")


def _focused(owner: tk.Misc) -> tk.Misc | None:
    try:
        return owner.focus_get()
    except KeyError:  # a widget of Tk's own
        return None


def _stop(action: Callable[[], object]) -> str:
    action()
    return "break"


def _close_open(widget: tk.Misc) -> None:
    """Close the popover that is open in this program, if there is one."""
    found: PopupMenu | None = widget.nametowidget(".").__dict__.pop("open_popover_", None)
    if found is not None:
        found.close()


def _watch(owner: tk.Misc) -> None:
    """Close the open popover at a click elsewhere, and if the window that it belongs to moves or goes."""
    root = owner.nametowidget(".")
    if "watches_popovers_" not in root.__dict__:
        root.__dict__["watches_popovers_"] = True
        for sequence in ("<ButtonPress>", "<MouseWheel>"):
            tk.Misc.bind_all(root, sequence, partial(_pressed, root), add="+")
    if "popover_at_" not in owner.__dict__:
        owner.__dict__["popover_at_"] = _geometry(owner)
        for sequence in ("<Configure>", "<Unmap>"):
            bind_own(owner, sequence, partial(_close_moved, owner))


def _geometry(window: tk.Misc) -> tuple[int, int, int, int]:
    return window.winfo_rootx(), window.winfo_rooty(), window.winfo_width(), window.winfo_height()


def _close_moved(owner: tk.Misc) -> None:
    at = _geometry(owner)
    if at != owner.__dict__.get("popover_at_", at) or not owner.winfo_viewable():
        _close_open(owner)
    owner.__dict__["popover_at_"] = at


def _pressed(root: tk.Misc, event: tk.Event[tk.Misc]) -> None:
    found: PopupMenu | None = root.__dict__.get("open_popover_")
    if found is None or found.window is None or found.is_opening:
        return
    if not _is_inside(str(event.widget), found.window):
        found.close()
