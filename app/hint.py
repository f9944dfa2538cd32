"""Help that comes up beside the pointer after a moment, or at once for the field that has the focus."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app import look

DELAY_MS = 450
WIDTH = 340


class Hint:
    """One small window at a time, and at most one about to come; both belong to one main window and end with it."""

    def __init__(self) -> None:
        self._showing: tk.Toplevel | None = None
        self._waiting: tuple[tk.Misc, str] | None = None

    @classmethod
    def of(cls, widget: tk.Misc) -> Hint:
        """That of the main window in which a widget lies."""
        hint: Hint = widget.nametowidget(".").__dict__.setdefault("hint_", cls())
        return hint

    @classmethod
    def attach(cls, widget: tk.Misc, words: str | Callable[[], str]) -> None:
        """Show the words while the pointer rests on the widget."""
        hint = cls.of(widget)
        for part in (widget, *widget.winfo_children()):
            tk.Misc.bind(part, "<Enter>", lambda event: hint._wait(widget, words), add="+")
            tk.Misc.bind(part, "<Leave>", lambda event: hint.hide(), add="+")
            tk.Misc.bind(part, "<ButtonPress>", lambda event: hint.hide(), add="+")

    def show(self, widget: tk.Misc, words: str) -> None:
        """Show the words below a widget now."""
        self.hide()
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
        self._showing = window

    def hide(self) -> None:
        """Take it away, and forget what was about to come."""
        if self._waiting is not None:
            (widget, job), self._waiting = self._waiting, None
            if widget.winfo_exists():
                widget.after_cancel(job)
        if self._showing is not None:
            window, self._showing = self._showing, None
            window.destroy()

    def _wait(self, widget: tk.Misc, words: str | Callable[[], str]) -> None:
        self.hide()

        def due() -> None:
            self._waiting = None
            if widget.winfo_exists():
                self.show(widget, words() if callable(words) else words)

        self._waiting = (widget, widget.after(DELAY_MS, due))
