"""The keyboard shortcuts of the window; app/windows/shortcuts.py lists them for F1."""

from __future__ import annotations

import sys
import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from app.sections import SECTIONS
from app.shell.files import Files
from app.shell.header import Header
from app.shell.run_bar import RunBar
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import handler
from app.widgets.tooltip import Tooltip


class ShortcutTarget(Protocol):
    """What the shortcuts act on: the main window."""

    files: Files
    header: Header
    run_bar: RunBar
    state_: AppState
    section: str
    sections: dict[str, Any]

    def open_presets(self) -> None: ...
    def close(self) -> None: ...
    def undo(self) -> None: ...
    def redo(self) -> None: ...
    def set_advanced(self, advanced: bool) -> None: ...
    def next_mode(self) -> None: ...
    def set_mode(self, mode: theme.Mode) -> None: ...
    def scale_by(self, steps: int) -> None: ...
    def set_scale(self, percent: int) -> None: ...
    def show_section(self, name: str) -> None: ...
    def show_shortcuts(self) -> None: ...
    def next_fault(self, by: int) -> None: ...


CONTROL = "Command" if sys.platform == "darwin" else "Control"


def bind_keys(root: tk.Tk, window: ShortcutTarget) -> None:
    """Bind all shortcuts; each stops the event, so that Tk's own binding (Ctrl+O opens a line) does not run."""
    files = window.files
    # in every field that text can be selected in; Tk's own Ctrl+A on Linux goes to the start of the line, as in Emacs
    root.event_delete("<<LineStart>>", "<Control-a>")
    root.event_add("<<SelectAll>>", "<Control-a>")
    keys: dict[str, Callable[[], object]] = {
        f"<{CONTROL}-n>": files.new,
        f"<{CONTROL}-o>": files.choose,
        f"<{CONTROL}-s>": files.save,
        f"<{CONTROL}-Shift-S>": files.save_as,
        f"<{CONTROL}-p>": window.open_presets,
        f"<{CONTROL}-q>": window.close,
        f"<{CONTROL}-z>": window.undo,
        f"<{CONTROL}-y>": window.redo,
        f"<{CONTROL}-Shift-Z>": window.redo,
        f"<{CONTROL}-f>": lambda: window.header.search.focus_search(),
        f"<{CONTROL}-k>": lambda: window.header.search.focus_search(),
        f"<{CONTROL}-e>": lambda: window.set_advanced(not window.state_.advanced),
        f"<{CONTROL}-l>": window.next_mode,
        f"<{CONTROL}-plus>": lambda: window.scale_by(1),
        f"<{CONTROL}-equal>": lambda: window.scale_by(1),
        f"<{CONTROL}-KP_Add>": lambda: window.scale_by(1),
        f"<{CONTROL}-minus>": lambda: window.scale_by(-1),
        f"<{CONTROL}-KP_Subtract>": lambda: window.scale_by(-1),
        f"<{CONTROL}-Alt-Key-0>": lambda: window.set_scale(100),
        f"<{CONTROL}-Tab>": lambda: _step(window, 1),
        f"<{CONTROL}-Shift-Tab>": lambda: _step(window, -1),
        f"<{CONTROL}-i>": lambda: _with_field(root, window, "show_help"),
        "<Alt-BackSpace>": lambda: _with_field(root, window, "reset_to_default"),
        "<F4>": lambda: window.run_bar.buttons.enqueue.invoke(),
        "<F5>": lambda: window.run_bar.buttons.train.invoke(),
        f"<{CONTROL}-F5>": lambda: window.run_bar.press_resume(),
        "<Shift-F5>": lambda: window.run_bar.buttons.stop.invoke(),
        "<F6>": lambda: window.run_bar.buttons.back_up.invoke(),
        "<F7>": lambda: window.run_bar.buttons.sample.invoke(),
        "<F9>": lambda: window.run_bar.buttons.save.invoke(),
        "<F12>": lambda: window.run_bar.show_details(),
        "<F1>": window.show_shortcuts,
        "<F8>": lambda: window.next_fault(1),
        "<Shift-F8>": lambda: window.next_fault(-1),
    }
    for digit, name in zip("1234567890", SECTIONS, strict=False):  # as they lie on the keyboard; an 11th has none
        keys[f"<{CONTROL}-Key-{digit}>"] = partial(window.show_section, name)
    tag = "TandemKeys"
    for key, action in keys.items():
        root.bind_class(tag, key, handler(action))
    tk.Misc.bind(root, "<ButtonPress>", lambda event: window.header.search.pressed(event.widget), add="+")
    root.bind_all("<Escape>", lambda event: Tooltip.of(root).hide(), add="+")
    root.bind_class("all", "<FocusIn>", lambda event: _add_bindtag(root, event.widget, tag), add="+")
    root.bind_class("all", "<FocusIn>", lambda event: _return_focus(root, event.widget), add="+")


def _add_bindtag(window: tk.Tk, widget: object, tag: str) -> None:
    """Put the shortcuts before the widget's own bindings, once; other windows (dialogs, menus) are left alone."""
    if isinstance(widget, tk.Misc) and widget.winfo_toplevel() is window and tag not in widget.bindtags():
        widget.bindtags((tag, *widget.bindtags()))


def _return_focus(window: tk.Tk, widget: object) -> None:
    """The keyboard stays with a modal dialog, also if a field behind it is focused."""
    dialog = window.grab_current()  # type: ignore[no-untyped-call]
    if isinstance(dialog, tk.Toplevel) and isinstance(widget, tk.Misc) and widget.winfo_toplevel() is window:
        dialog.focus_force()


def _step(window: ShortcutTarget, by: int) -> None:
    names = list(SECTIONS)
    window.show_section(names[(names.index(window.section) + by) % len(names)])


def _with_field(root: tk.Tk, window: ShortcutTarget, action: str) -> None:
    """Call a method of the field that has the focus."""
    holding = getattr(window.sections[window.section], "holding", None)
    field = holding(root.focus_get()) if holding else None
    if field is not None:
        getattr(field, action)()
