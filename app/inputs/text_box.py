"""Several lines of text."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app import look
from app.inputs.box import Box


class TextBox(Box):
    """Several lines of text; Tab leaves it."""

    def __init__(
        self,
        parent: tk.Misc,
        changed: Callable[[str], object],
        *,
        on: look.Colour = look.CARD,
        width: int = 240,
        height: int = 64,
        mono: bool = False,
    ) -> None:
        self.text = tk.Text(
            parent,
            borderwidth=0,
            highlightthickness=0,
            relief="flat",
            wrap="word",
            width=1,
            height=1,
            padx=0,
            pady=0,
            font=look.tk_font("mono" if mono else "body"),
            insertwidth=look.px(2),
            selectborderwidth=0,
            undo=False,
        )
        super().__init__(parent, on, width, height)
        self._changed = changed
        self._shown = ""
        self._window = self.create_window(look.px(8), look.px(6), anchor="nw", window=self.text)
        self.text.lift()
        self.bind("<Configure>", lambda event: self._fit(), add="+")
        box = self.text
        box.bind("<<Modified>>", lambda event: self._look_again(), add="+")
        box.bind("<FocusIn>", lambda event: self._focus(True), add="+")
        box.bind("<FocusOut>", lambda event: self._focus(False), add="+")
        box.bind("<Tab>", lambda event: _go(box.tk_focusNext()))
        box.bind("<Shift-Tab>", lambda event: _go(box.tk_focusPrev()))
        if box.tk.call("tk", "windowingsystem") == "x11":
            box.bind("<ISO_Left_Tab>", lambda event: _go(box.tk_focusPrev()))
        self._fit()

    def get(self) -> str:
        """The text."""
        return self.text.get("1.0", "end-1c")

    def show(self, text: str) -> None:
        """Put text in without telling anybody."""
        self._shown = text
        if text != self.get():
            self.text.configure(state="normal")
            self.text.delete("1.0", tk.END)
            self.text.insert("1.0", text)
            self.text.configure(state="normal" if self._enabled else "disabled")

    def enable(self, enabled: bool) -> None:
        """Greyed and out of the focus order, or not."""
        self._enabled = enabled
        self.text.configure(state="normal" if enabled else "disabled", takefocus=enabled)
        self.draw()

    def focus_set(self) -> None:
        """Begin to type."""
        self.text.focus_set()

    def draw(self) -> None:
        super().draw()
        self.text.configure(
            bg=look.now(look.FIELD if self._enabled else look.CARD),
            fg=look.now(look.TEXT if self._enabled else look.FAINT),
            insertbackground=look.now(look.TEXT),
            selectbackground=look.now(look.ACCENT),
            selectforeground=look.now(look.ON_ACCENT),
        )

    def _fit(self) -> None:
        width = max(self.winfo_width(), int(self.cget("width")))
        height = max(self.winfo_height(), int(self.cget("height")))
        self.itemconfigure(self._window, width=width - look.px(16), height=height - look.px(12))

    def _look_again(self) -> None:
        self.text.edit_modified(False)  # or it would not tell of the next change
        text = self.get()
        if text != self._shown:
            self._shown = text
            self._changed(text)


def _go(widget: tk.Misc | None) -> str:
    if widget is not None:
        widget.focus_set()
    return "break"
