"""A dialog with a title, a body and buttons; Escape closes it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from app.widgets import theme
from app.widgets.buttons import Button, Style, frame, text, wrap_within
from app.widgets.later import later
from app.widgets.tooltip import Tooltip

_POLL_MS = 250
_OPENING_MS = 50
_WINDOW_MANAGER_MS = 150  # after a click, until it has given the keyboard to the window that was clicked
EDGE = 24  # pixels of the screen height that a tall dialog leaves free


class DialogWindow(tk.Toplevel):
    """That of a dialog, as other windows are of menus and tooltips."""


class Dialog:
    """Fill `body`, add buttons, then `show`. In a `wide` one the message is as wide as the body."""

    def __init__(
        self, owner: tk.Misc, title: str, message: str = "", modal: bool = True, *, wide: bool = False
    ) -> None:
        self._owner = owner.winfo_toplevel()
        self._modal = modal
        self._below: tk.Misc | None = None  # the modal dialog that waits until this one is closed
        self._focused = str(self._owner.tk.call("focus"))  # gets the keyboard back
        self.window = DialogWindow(self._owner)
        self.window.withdraw()
        self.window.title(title)
        self.window.transient(self._owner)
        self.window.resizable(False, False)
        self.window.configure(highlightthickness=1)
        theme.paint(self.window, bg=theme.CARD, highlightbackground=theme.EDGE, highlightcolor=theme.EDGE)
        outer = frame(self.window)
        outer.pack(fill="both", expand=True, padx=theme.px(24), pady=theme.px(20))
        self._row = frame(outer)
        self._row.pack(side="bottom", anchor="e")  # packed first, so that a low screen cuts off something else
        text(outer, title, "large").pack(anchor="w")
        if message:
            label = text(outer, message, colour=theme.MUTED, wrap=520)
            label.pack(anchor="w", pady=(theme.px(8), 0))
            if wide:
                wrap_within(label, outer, margin=0)
        self.body = frame(outer)
        self.body.pack(fill="both", expand=True, pady=theme.px(16))
        self.on_cancel: Callable[[], object] = self.close  # what Escape and the frame's own button do
        self.window.bind("<Escape>", lambda event: self.on_cancel())
        self.window.protocol("WM_DELETE_WINDOW", lambda: self.on_cancel())

    def button(self, label: str, command: Callable[[], object], style: Style = "plain", *, widest: str = "") -> Button:
        """Add a button at the right, with room for its `widest` label, so that no other button moves."""
        button = Button(self._row, widest or label, command, style=style, bg=theme.CARD)
        if widest:
            button.configure(text=label, width=button.winfo_reqwidth() / theme.scale())
        button.pack(side="left", padx=(8, 0))
        return button

    def on_return(self, action: Callable[[], object]) -> None:
        """Run `action` on Return, regardless of the focus."""
        self.window.bind("<Return>", lambda event: action())

    def cancel_when(self, is_over: Callable[[], bool]) -> None:
        """Close it by itself, as Escape does, once there is nothing left to decide."""
        if not self.window.winfo_exists():
            return
        if is_over():
            self.on_cancel()
        else:
            self.window.after(_POLL_MS, partial(self.cancel_when, is_over))

    def show(self) -> tk.Toplevel:
        """Place it over its owner and take the keyboard focus."""
        window = self.window
        Tooltip.of(self._owner).hide()  # it would cover the dialog, for which no pointer need move
        self.place()
        if self._owner.winfo_width() == 1:  # it is still opening: where it will be is known in a moment
            window.after(_OPENING_MS, self.place)
        self._below = window.grab_current()  # type: ignore[no-untyped-call]
        with _input_held(self._owner):
            window.deiconify()
            window.lift()
            window.wait_visibility()
        if self._modal:
            window.grab_set()
            window.bind("<Button>", self._pressed, add="+")
        elif self._below is not None:
            self._below.grab_set()
        window.focus_force()
        return window

    def _pressed(self, event: tk.Event[tk.Misc]) -> None:
        """After a click behind it, which the grab sends here, take the keyboard back from what was clicked."""
        width, height = self.window.winfo_width(), self.window.winfo_height()
        if event.widget is self.window and not (0 <= event.x < width and 0 <= event.y < height):
            later(self.window, _WINDOW_MANAGER_MS, self._take_keyboard)

    def _take_keyboard(self) -> None:
        if self.window.grab_current() is self.window:  # type: ignore[no-untyped-call]
            self.window.tk.call("focus", "-force", self.window.tk.call("focus", "-lastfor", self.window))

    def close(self) -> None:
        """Close it; the keyboard and the clicks go to the dialog that still waits, or else back to where they were."""
        if not self.window.winfo_exists():
            return
        above = self.window.grab_current()  # type: ignore[no-untyped-call]
        waiting = self._below if above in (None, self.window) else above
        self.window.destroy()
        if waiting is not None and waiting.winfo_exists():
            waiting.grab_set()
            waiting.focus_force()
        elif self._focused and self._owner.tk.call("winfo", "exists", self._focused):
            self._owner.tk.call("focus", "-force", self._focused)
        else:
            self._owner.focus_force()

    def place(self) -> None:
        """Put it over its owner and wholly onto the screen, also once its contents have become larger."""
        window, owner = self.window, self._owner
        window.update_idletasks()
        width = min(window.winfo_reqwidth(), window.winfo_screenwidth())
        height = min(window.winfo_reqheight(), window.winfo_screenheight() - theme.px(EDGE))
        x = owner.winfo_rootx() + (owner.winfo_width() - width) // 2
        y = owner.winfo_rooty() + (owner.winfo_height() - height) // 3
        y = min(max(y, 0), window.winfo_screenheight() - height)
        if (width, height) == (window.winfo_reqwidth(), window.winfo_reqheight()):
            window.geometry(f"+{max(x, 0)}+{y}")  # without a size it grows with its contents
        else:
            window.geometry(f"{width}x{height}+{max(x, 0)}+{y}")


def open_dialogs(root: tk.Misc) -> list[str]:
    """The titles of the dialogs that are on the screen, or on their way to it."""
    return [child.title() for child in root.winfo_children() if isinstance(child, DialogWindow)]


def raise_modal(root: tk.Misc) -> bool:
    """Bring the modal dialog that is open to the front; whether there is one."""
    found = root.grab_current()  # type: ignore[no-untyped-call]
    if not isinstance(found, tk.Toplevel) or found.overrideredirect():
        return False
    found.lift()
    found.focus_force()
    return True


@contextmanager
def _input_held(owner: tk.Misc) -> Iterator[None]:
    """Inside, clicks and keys go nowhere: a double click, or a key that is held, would open a dialog several times."""
    sink = tk.Frame(owner)
    sink.bindtags(("NoBindings",))
    sink.place(x=-9, y=-9, width=1, height=1)
    sink.update_idletasks()  # which maps it
    with suppress(tk.TclError):  # the owner is not on the screen yet
        sink.grab_set()
        sink.focus_set()
    try:
        yield
    finally:
        with suppress(tk.TclError):  # it went with its owner
            sink.destroy()


def is_opening(root: tk.Misc) -> bool:
    """Whether a dialog of this window is on its way to the screen: it waits for that, so it may not be destroyed."""
    dialogs = [child for child in root.winfo_children() if isinstance(child, tk.Toplevel)]
    return any(dialog.state() == "normal" and not dialog.winfo_viewable() for dialog in dialogs)
