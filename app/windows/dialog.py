"""A small window over the main one: a title, a body, buttons; Escape closes it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app import look
from app.controls import Button, Style, frame, text

EDGE = 24  # of the screen that a tall dialog leaves free


class Dialog:
    """Fill `body`, add buttons, then `show`."""

    def __init__(self, owner: tk.Misc, title: str, words: str = "", modal: bool = True) -> None:
        self._owner = owner.winfo_toplevel()
        self._modal = modal
        self.window = tk.Toplevel(self._owner)
        self.window.withdraw()
        self.window.title(title)
        self.window.transient(self._owner)
        self.window.resizable(False, False)
        self.window.configure(highlightthickness=1)
        look.paint(self.window, bg=look.CARD, highlightbackground=look.FIELD_LINE, highlightcolor=look.FIELD_LINE)
        outer = frame(self.window)
        outer.pack(fill="both", expand=True, padx=look.px(24), pady=look.px(20))
        text(outer, title, "large").pack(anchor="w")
        if words:
            text(outer, words, colour=look.MUTED, wrap=520).pack(anchor="w", pady=(look.px(8), 0))
        self._row = frame(outer)
        self._row.pack(side="bottom", anchor="e")  # first, so that a low screen cuts off anything else
        self.body = frame(outer)
        self.body.pack(fill="both", expand=True, pady=look.px(16))
        self.window.bind("<Escape>", lambda event: self.close())
        self.window.protocol("WM_DELETE_WINDOW", self.close)

    def button(self, words: str, command: Callable[[], object], style: Style = "plain") -> Button:
        """One more button at the right."""
        button = Button(self._row, words, command, style=style, on=look.CARD)
        button.pack(side="left", padx=(8, 0))
        return button

    def on_return(self, action: Callable[[], object]) -> None:
        """What Return does, wherever the focus is."""
        self.window.bind("<Return>", lambda event: action())

    def show(self) -> tk.Toplevel:
        """Place it over its owner and give it the keyboard."""
        window, owner = self.window, self._owner
        window.update_idletasks()
        width = min(window.winfo_reqwidth(), window.winfo_screenwidth())
        height = min(window.winfo_reqheight(), window.winfo_screenheight() - look.px(EDGE))
        x = owner.winfo_rootx() + (owner.winfo_width() - width) // 2
        y = owner.winfo_rooty() + (owner.winfo_height() - height) // 3
        y = min(max(y, 0), window.winfo_screenheight() - height)
        if (width, height) == (window.winfo_reqwidth(), window.winfo_reqheight()):
            window.geometry(f"+{max(x, 0)}+{y}")  # and grows with what it says
        else:
            window.geometry(f"{width}x{height}+{max(x, 0)}+{y}")
        window.deiconify()
        window.lift()
        window.wait_visibility()
        if self._modal:
            window.grab_set()
        window.focus_force()
        return window

    def close(self) -> None:
        """Take it away and give the keyboard back."""
        if self.window.winfo_exists():
            self.window.grab_release()
            self.window.destroy()
            self._owner.focus_force()
