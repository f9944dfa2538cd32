"""A multi-line text box."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets import theme
from app.widgets.inputs.box import Box


class TextBox(Box):
    """Several lines of text; Tab leaves it."""

    def __init__(
        self,
        parent: tk.Misc,
        changed: Callable[[str], object],
        *,
        bg: theme.Colour = theme.CARD,
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
            font=theme.tk_font("mono" if mono else "body"),
            insertwidth=theme.px(2),
            selectborderwidth=0,
            undo=False,
        )
        super().__init__(parent, bg, width, height)
        self._changed = changed
        self._shown = ""
        self._window = self.create_window(theme.px(8), theme.px(6), anchor="nw", window=self.text)
        self.text.lift()
        self.bind("<Configure>", lambda event: self._fit(), add="+")
        box = self.text
        box.bind("<<Modified>>", lambda event: self._edited(), add="+")
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
        """Set the text without calling `changed`."""
        self._shown = text
        if text != self.get():
            self.text.configure(state="normal")
            self.text.delete("1.0", tk.END)
            self.text.insert("1.0", text)
            self.text.configure(state="normal" if self._enabled else "disabled")

    def enable(self, enabled: bool) -> None:
        """Enable or disable it."""
        self._enabled = enabled
        self.text.configure(state="normal" if enabled else "disabled", takefocus=enabled)
        self.draw()

    def focus_set(self) -> None:
        """Focus the text."""
        self.text.focus_set()

    def draw(self) -> None:
        super().draw()
        self.text.configure(
            bg=theme.resolve(theme.FIELD if self._enabled else theme.CARD),
            fg=theme.resolve(theme.TEXT if self._enabled else theme.FAINT),
            insertbackground=theme.resolve(theme.TEXT),
            selectbackground=theme.resolve(theme.ACCENT),
            selectforeground=theme.resolve(theme.ON_ACCENT),
        )

    def _fit(self) -> None:
        width, height = self.extent()
        self.itemconfigure(self._window, width=max(width - theme.px(16), 1), height=max(height - theme.px(12), 1))

    def _edited(self) -> None:
        self.text.edit_modified(False)  # else Tk would not report the next change
        text = self.get()
        if text != self._shown:
            self._shown = text
            self._changed(text)


def _go(widget: tk.Misc | None) -> str:
    if widget is not None:
        widget.focus_set()
    return "break"
