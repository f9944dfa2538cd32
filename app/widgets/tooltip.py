"""Tooltips: shown after a moment under the pointer, or at once for the focused field."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets import theme

DELAY_MS = 450
WIDTH = 340
LONG_WIDTH = 460
_LONG = 600  # characters of a text that gets the larger width


class Tooltip:
    """At most one visible and one pending tooltip per main window, with which they end."""

    def __init__(self) -> None:
        self._showing: tk.Toplevel | None = None
        self._pending: tuple[tk.Misc, str] | None = None
        self._pressed_at: tuple[int, int] | None = None  # on the screen

    @classmethod
    def of(cls, widget: tk.Misc) -> Tooltip:
        """The tooltip of the main window that contains a widget."""
        tooltip: Tooltip = widget.nametowidget(".").__dict__.setdefault("tooltip_", cls())
        return tooltip

    @classmethod
    def attach(cls, widget: tk.Misc, content: str | Callable[[], str]) -> None:
        """Show the text while the pointer rests on the widget."""
        tooltip = cls.of(widget)
        for part in (widget, *widget.winfo_children()):
            tk.Misc.bind(part, "<Enter>", lambda event: tooltip._entered(event, widget, content), add="+")
            tk.Misc.bind(part, "<Leave>", lambda event: tooltip.hide(), add="+")
            for press in ("<ButtonPress>", "<Button-1>"):  # only the more specific one is called, which buttons bind
                tk.Misc.bind(part, press, tooltip._pressed, add="+")

    def rest(self, widget: tk.Misc, content: str, part: tuple[int, int, int]) -> None:
        """Show the text in a moment, as `show` does; `hide` prevents it."""
        self._schedule(widget, content, part)

    def show(self, widget: tk.Misc, content: str, part: tuple[int, int, int] | None = None) -> None:
        """Show the text below a widget now, or below the `part` with this left, upper and lower edge."""
        self.hide()
        if not content or not widget.winfo_viewable():
            return
        window = tk.Toplevel(widget)
        window.withdraw()
        window.overrideredirect(True)
        theme.paint(window, bg=theme.TOOLTIP)
        label = tk.Label(
            window,
            text=content,
            justify="left",
            wraplength=theme.px(WIDTH if len(content) < _LONG else LONG_WIDTH),
            font=theme.tk_font("small"),
            padx=theme.px(10),
            pady=theme.px(7),
        )
        theme.paint(label, bg=theme.TOOLTIP, fg=theme.ON_TOOLTIP)
        label.pack()
        window.update_idletasks()
        width, height = window.winfo_reqwidth(), window.winfo_reqheight()
        left, top, bottom = part or (0, 0, widget.winfo_height())
        x = min(widget.winfo_rootx() + left, widget.winfo_screenwidth() - width - 8)
        below = widget.winfo_rooty() + bottom + theme.px(6)
        above = widget.winfo_rooty() + top - height - theme.px(6)
        y = below if below + height < widget.winfo_screenheight() else max(above, 0)
        window.geometry(f"+{max(x, 0)}+{y}")
        window.deiconify()
        window.lift()
        self._showing = window

    def hide(self) -> None:
        """Hide it, and cancel a pending one."""
        if self._pending is not None:
            (widget, job), self._pending = self._pending, None
            if widget.winfo_exists():
                widget.after_cancel(job)
        if self._showing is not None:
            window, self._showing = self._showing, None
            window.destroy()

    def _pressed(self, event: tk.Event[tk.Misc]) -> None:
        self._pressed_at = event.x_root, event.y_root
        self.hide()

    def _entered(self, event: tk.Event[tk.Misc], widget: tk.Misc, content: str | Callable[[], str]) -> None:
        # What a click moves under a resting pointer is entered, too: a tooltip would cover what the click shows.
        if (event.x_root, event.y_root) != self._pressed_at:
            self._schedule(widget, content)

    def _schedule(
        self, widget: tk.Misc, content: str | Callable[[], str], part: tuple[int, int, int] | None = None
    ) -> None:
        self.hide()

        def due() -> None:
            self._pending = None
            if widget.winfo_exists():
                self.show(widget, content() if callable(content) else content, part)

        self._pending = (widget, widget.after(DELAY_MS, due))
