"""A vertically scrolling area; the wheel scrolls it, and it follows the keyboard focus."""

from __future__ import annotations

import sys
import tkinter as tk

from app.widgets import theme
from app.widgets.scrollbar import Scrollbar


class Scroll(tk.Frame):
    """Put widgets into `inside`. Space for the scrollbar is reserved, so that nothing jumps when it appears."""

    def __init__(self, parent: tk.Misc, bg: theme.Colour = theme.WINDOW) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=bg)
        self.canvas = tk.Canvas(self, borderwidth=0, highlightthickness=0, yscrollincrement=1)
        theme.paint(self.canvas, bg=bg)
        self.inside = tk.Frame(self.canvas, borderwidth=0, highlightthickness=0)
        theme.paint(self.inside, bg=bg)
        self.canvas.pack(side="left", fill="both", expand=True)
        self._room = tk.Frame(self, width=theme.px(12))
        theme.paint(self._room, bg=bg)
        self._room.pack(side="right", fill="y")
        self.bar = Scrollbar(self, self.canvas.yview, bg)  # after the room, which would cover it
        self._window = self.canvas.create_window(0, 0, anchor="nw", window=self.inside)
        self.canvas.configure(yscrollcommand=self._scrolled)
        self.inside.bind("<Configure>", lambda event: self._fit())
        self.canvas.bind("<Configure>", lambda event: self._fit())

    def ask_for_all(self) -> None:
        """Ask for the room of all that is inside; where a window has less, it scrolls."""
        self.inside.update_idletasks()
        self.canvas.configure(width=self.inside.winfo_reqwidth(), height=self.inside.winfo_reqheight())

    def see(self, widget: tk.Misc, margin: int = 56, part: tuple[int, int] | None = None) -> None:
        """Scroll as little as needed to show the widget, plus `margin` unscaled pixels.

        `part`: only what is between these two heights of the widget, in pixels.
        """
        self.update_idletasks()
        above = widget.winfo_rooty() - self.inside.winfo_rooty()
        first, last = part or (0, widget.winfo_height())
        top, bottom = above + first - theme.px(margin), above + last + theme.px(margin)
        view, height = int(self.canvas.canvasy(0)), self.canvas.winfo_height()
        if bottom > view + height:
            view = bottom - height
        if top < view:
            view = top
        self.canvas.yview_moveto(max(view, 0) / max(self.inside.winfo_height(), 1))

    def shows(self, widget: tk.Misc) -> bool:
        """Whether the whole height of the widget is in sight."""
        top = widget.winfo_rooty() - self.canvas.winfo_rooty()
        return top >= 0 and top + widget.winfo_height() <= self.canvas.winfo_height()

    def wheel(self, steps: int) -> None:
        """Scroll by `steps` wheel notches; positive is down."""
        if self.inside.winfo_height() > self.canvas.winfo_height():
            self.canvas.yview_scroll(steps * theme.px(56), "units")

    def _fit(self) -> None:
        self.canvas.itemconfigure(self._window, width=self.canvas.winfo_width())
        self.canvas.configure(scrollregion=(0, 0, 0, max(self.inside.winfo_reqheight(), self.canvas.winfo_height())))

    def _scrolled(self, first: float, last: float) -> None:
        self.bar.set(float(first), float(last))
        needed = float(first) > 0 or float(last) < 1
        if needed and not self.bar.winfo_manager():
            self.bar.place(in_=self._room, relx=0, rely=0, relheight=1)
        elif not needed and self.bar.winfo_manager():
            self.bar.place_forget()


def scroll_by_wheel(root: tk.Tk) -> None:
    """Make the wheel scroll the innermost area under the pointer."""
    for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
        root.bind_all(sequence, _turned, add="+")


def scroll_to_focus(root: tk.Tk) -> None:
    """Scroll each widget that gets the focus into view, unless it is an area itself or its scrollbar.

    What is in sight stays where it is, and so does what is under the pointer: it would move away from a press before
    the release.
    """
    root.bind_all("<FocusIn>", _focused, add="+")


def enclosing(widget: object) -> Scroll | None:
    """The innermost area that contains a widget."""
    while isinstance(widget, tk.Misc):
        if isinstance(widget, Scroll):
            return widget
        widget = widget.master
    return None


def _focused(event: tk.Event[tk.Misc]) -> None:
    area = enclosing(event.widget)
    if area is None or not str(event.widget).startswith(f"{area.inside}."):
        return
    if not area.shows(event.widget) and not (_is_under_pointer(event.widget) and _is_under_pointer(area.canvas)):
        area.see(event.widget)


def _is_under_pointer(widget: tk.Misc) -> bool:
    x, y = widget.winfo_pointerx() - widget.winfo_rootx(), widget.winfo_pointery() - widget.winfo_rooty()
    return 0 <= x < widget.winfo_width() and 0 <= y < widget.winfo_height()


def _turned(event: tk.Event[tk.Misc]) -> None:
    area = enclosing(event.widget)
    if area is None or (isinstance(event.widget, (tk.Text, tk.Listbox)) and event.widget.yview() != (0.0, 1.0)):
        return  # it scrolls itself
    if event.num in (4, 5):
        area.wheel(-1 if event.num == 4 else 1)
    else:
        area.wheel(-event.delta if sys.platform == "darwin" else -event.delta // 120)
