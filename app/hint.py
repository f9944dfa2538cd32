"""Help that comes up beside the pointer after a moment, or at once for the field that has the focus."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app import look

DELAY_MS = 450
WIDTH = 340


class Hint:
    """One small window at a time."""

    _showing: tk.Toplevel | None = None
    _waiting: tuple[tk.Misc, str] | None = None

    @classmethod
    def attach(cls, widget: tk.Misc, words: str | Callable[[], str]) -> None:
        """Show the words while the pointer rests on the widget."""
        for part in (widget, *widget.winfo_children()):
            tk.Misc.bind(part, "<Enter>", lambda event: cls._wait(widget, words), add="+")
            tk.Misc.bind(part, "<Leave>", lambda event: cls.hide(), add="+")
            tk.Misc.bind(part, "<ButtonPress>", lambda event: cls.hide(), add="+")

    @classmethod
    def show(cls, widget: tk.Misc, words: str) -> None:
        """Show the words below a widget now."""
        cls.hide()
        if not words or not widget.winfo_viewable():
            return
        window = tk.Toplevel(widget)
        window.withdraw()
        window.overrideredirect(True)
        look.paint(window, bg=look.TOOLTIP)
        label = tk.Label(
            window,
            text=words,
            justify="left",
            wraplength=look.px(WIDTH),
            font=look.tk_font("small"),
            padx=look.px(10),
            pady=look.px(7),
        )
        look.paint(label, bg=look.TOOLTIP, fg=look.ON_TOOLTIP)
        label.pack()
        window.update_idletasks()
        width, height = window.winfo_reqwidth(), window.winfo_reqheight()
        x = min(widget.winfo_rootx(), widget.winfo_screenwidth() - width - 8)
        below = widget.winfo_rooty() + widget.winfo_height() + look.px(6)
        above = widget.winfo_rooty() - height - look.px(6)
        window.geometry(f"+{max(x, 0)}+{below if below + height < widget.winfo_screenheight() else above}")
        window.deiconify()
        window.lift()
        cls._showing = window

    @classmethod
    def hide(cls) -> None:
        """Take it away, and forget what was about to come."""
        if cls._waiting is not None:
            widget, job = cls._waiting
            cls._waiting = None
            if widget.winfo_exists():
                widget.after_cancel(job)
        if cls._showing is not None:
            window, cls._showing = cls._showing, None
            window.destroy()

    @classmethod
    def _wait(cls, widget: tk.Misc, words: str | Callable[[], str]) -> None:
        cls.hide()

        def due() -> None:
            cls._waiting = None
            if widget.winfo_exists():
                cls.show(widget, words() if callable(words) else words)

        cls._waiting = (widget, widget.after(DELAY_MS, due))
