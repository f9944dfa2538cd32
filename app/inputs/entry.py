"""One line of text."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from app import look
from app.inputs.box import Box


class Entry(Box):
    """One line of text. `changed` is called at every keystroke that changes it, `left` when the focus goes."""

    def __init__(
        self,
        parent: tk.Misc,
        changed: Callable[[str], object] | None = None,
        *,
        left: Callable[[], object] | None = None,
        on: look.Colour = look.CARD,
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
            font=look.tk_font("mono" if mono else "body"),
            insertwidth=look.px(2),
            selectborderwidth=0,
        )
        super().__init__(parent, on, width)
        self._changed = changed
        self._left = left
        self._placeholder = placeholder or ""
        self._shown = ""
        self._indent = look.px(8 + indent)
        self._window = self.create_window(self._indent, 0, anchor="w", window=self.line)
        self._ghost = tk.Label(
            self.line, text=self._placeholder, font=look.tk_font(), borderwidth=0, padx=0, cursor="xterm"
        )
        self._ghost.bind("<Button-1>", lambda event: self.focus_set())
        self.line.lift()
        self.bind("<Button-1>", lambda event: self.focus_set())
        self.bind("<Configure>", lambda event: self._fit(), add="+")
        line = self.line
        # a variable hears of every change, by keys, mouse or an input method
        self._content = tk.StringVar(line)
        self._content.trace_add("write", lambda *_: self._look_again())
        line.configure(textvariable=self._content)
        line.bind("<FocusIn>", lambda event: self._focus(True), add="+")
        line.bind("<FocusOut>", lambda event: self._leave(), add="+")
        for key in ("<Control-a>", "<Command-a>"):
            line.bind(key, lambda event: self._select_all())
        self._fit()
        self._haunt()

    def get(self) -> str:
        """The text."""
        return self.line.get()

    def show(self, text: str) -> None:
        """Put text in without telling anybody; the cursor stays where nothing changes."""
        self._shown = text
        if text != self.line.get():
            self._content.set(text)
            self.line.icursor(tk.END)

    def enable(self, enabled: bool) -> None:
        """Greyed and out of the focus order, or not."""
        self._enabled = enabled
        self.line.configure(state="normal" if enabled else "disabled")
        self.draw()

    def focus_set(self) -> None:
        """Begin to type."""
        self.line.focus_set()

    def select_range(self, start: int, end: int | str) -> None:
        """Select text."""
        self.line.select_range(start, end)

    def draw(self) -> None:
        super().draw()
        fill = look.now(look.FIELD if self._enabled else look.CARD)
        self.line.configure(
            bg=fill,
            disabledbackground=fill,
            readonlybackground=fill,
            fg=look.now(look.TEXT),
            insertbackground=look.now(look.TEXT),
            disabledforeground=look.now(look.FAINT),
            selectbackground=look.now(look.ACCENT),
            selectforeground=look.now(look.ON_ACCENT),
        )
        if hasattr(self, "_ghost"):
            self._ghost.configure(bg=fill, fg=look.now(look.FAINT))

    def _fit(self) -> None:
        width = max(self.winfo_width(), int(self.cget("width")))
        height = max(self.winfo_height(), int(self.cget("height")))
        self.coords(self._window, self._indent, height // 2)
        self.itemconfigure(self._window, width=max(width - self._indent - look.px(8), 1))

    def _look_again(self) -> None:
        self._haunt()
        text = self.line.get()
        if text != self._shown:
            self._shown = text
            if self._changed:
                self._changed(text)

    def _haunt(self) -> None:
        """The placeholder stands there while there is nothing else."""
        if self._placeholder and not self.line.get():
            self._ghost.place(x=1, rely=0.5, anchor="w")
        else:
            self._ghost.place_forget()

    def _leave(self) -> None:
        self._focus(False)
        self.line.selection_clear()
        if self._left:
            self._left()

    def _select_all(self) -> str:
        self.line.select_range(0, tk.END)
        return "break"
