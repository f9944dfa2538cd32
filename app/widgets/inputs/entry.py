"""One line of text."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app.widgets import theme
from app.widgets.inputs.box import Box
from app.widgets.inputs.focus import handler


class Entry(Box):
    """One line of text. `changed(text)` is called at every edit, `left()` when the focus leaves."""

    def __init__(
        self,
        parent: tk.Misc,
        changed: Callable[[str], object] | None = None,
        *,
        left: Callable[[], object] | None = None,
        bg: theme.Colour = theme.CARD,
        width: int = 120,
        placeholder: str | None = None,
        mono: bool = False,
        indent: int = 0,
    ) -> None:
        self.line = tk.Entry(
            parent,
            borderwidth=0,
            highlightthickness=0,
            relief="flat",
            font=theme.tk_font("mono" if mono else "body"),
            insertwidth=theme.px(2),
            selectborderwidth=0,
        )
        super().__init__(parent, bg, width)
        self._changed = changed
        self._left = left
        self._placeholder = placeholder or ""
        self._shown = ""
        self._indent = theme.px(8 + indent)
        self._window = self.create_window(self._indent, 0, anchor="w", window=self.line)
        self._placeholder_label = tk.Label(
            self.line, text=self._placeholder, font=theme.tk_font(), borderwidth=0, padx=0, cursor="xterm"
        )
        self._placeholder_label.bind("<Button-1>", handler(self.focus_set))  # customtkinter would focus the label
        self.line.lift()
        self.bind("<Button-1>", lambda event: self.focus_set())
        self.bind("<Configure>", lambda event: self._fit(), add="+")
        line = self.line
        # a variable traces every change, by keys, mouse or an input method
        self._content = tk.StringVar(line)
        self._content.trace_add("write", lambda *_: self._edited())
        line.configure(textvariable=self._content)
        line.bind("<FocusIn>", lambda event: self._focus(True), add="+")
        line.bind("<FocusOut>", lambda event: self._leave(), add="+")
        self._fit()
        self._update_placeholder()

    def get(self) -> str:
        """The text."""
        return self.line.get()

    def show(self, text: str) -> None:
        """Set the text without calling `changed`; the cursor stays if nothing changes."""
        self._shown = text
        if text != self.line.get():
            self._content.set(text)
            self.line.icursor(tk.END)

    def enable(self, enabled: bool) -> None:
        """Enable or disable it."""
        self._enabled = enabled
        self.line.configure(state="normal" if enabled else "disabled")
        self.draw()

    def focus_set(self) -> None:
        """Focus the text."""
        self.line.focus_set()

    def select_range(self, start: int, end: int | str) -> None:
        """Select text, with the caret at its end: Tk replaces only a selection that the caret touches."""
        self.line.select_range(start, end)
        self.line.icursor(end)

    def draw(self) -> None:
        super().draw()
        fill = theme.resolve(theme.FIELD if self._enabled else theme.CARD)
        self.line.configure(
            bg=fill,
            disabledbackground=fill,
            readonlybackground=fill,
            fg=theme.resolve(theme.TEXT),
            insertbackground=theme.resolve(theme.TEXT),
            disabledforeground=theme.resolve(theme.FAINT),
            selectbackground=theme.resolve(theme.ACCENT),
            selectforeground=theme.resolve(theme.ON_ACCENT),
        )
        if hasattr(self, "_placeholder_label"):
            self._placeholder_label.configure(bg=fill, fg=theme.resolve(theme.FAINT))

    def _fit(self) -> None:
        width, height = self.extent()
        self.coords(self._window, self._indent, height // 2)
        self.itemconfigure(self._window, width=max(width - self._indent - theme.px(8), 1))

    def _edited(self) -> None:
        self._update_placeholder()
        text = self.line.get()
        if text != self._shown:
            self._shown = text
            if self._changed:
                self._changed(text)

    def _update_placeholder(self) -> None:
        """Show the placeholder while the field is empty."""
        if self._placeholder and not self.line.get():
            self._placeholder_label.place(x=1, rely=0.5, anchor="w")
        else:
            self._placeholder_label.place_forget()

    def _leave(self) -> None:
        self._focus(False)
        self.line.selection_clear()
        if self._left:
            self._left()
