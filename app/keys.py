"""The keyboard shortcuts of the whole window; texts.SHORTCUTS lists them for people."""

from __future__ import annotations

import sys
import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from app import texts
from app.controls import then
from app.hint import Hint

if TYPE_CHECKING:
    from app.main_window import MainWindow

CONTROL = "Command" if sys.platform == "darwin" else "Control"


def bind_keys(window: MainWindow) -> None:
    """Bind them all; each stops there, so that Tk's own meaning of a key (Ctrl+O opens a line) does not follow."""
    files = window.files
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
        f"<{CONTROL}-Key-0>": lambda: window.set_scale(100),
        f"<{CONTROL}-Tab>": lambda: _step(window, 1),
        f"<{CONTROL}-Shift-Tab>": lambda: _step(window, -1),
        f"<{CONTROL}-i>": lambda: _with_field(window, "show_help"),
        "<Alt-BackSpace>": lambda: _with_field(window, "back_to_default"),
        "<F5>": lambda: window.run_bar.train.invoke(),
        f"<{CONTROL}-F5>": lambda: window.run_bar.press_resume(),
        "<Shift-F5>": lambda: window.run_bar.stop.invoke(),
        "<F6>": lambda: window.run_bar.back_up.invoke(),
        "<F7>": lambda: window.run_bar.sample.invoke(),
        "<F9>": lambda: window.run_bar.save.invoke(),
        "<F1>": window.show_shortcuts,
        "<F8>": lambda: window.next_fault(1),
        "<Shift-F8>": lambda: window.next_fault(-1),
    }
    for number, name in enumerate(texts.SECTIONS, start=1):
        keys[f"<{CONTROL}-Key-{number}>"] = partial(window.show_section, name)
    tag = "TandemKeys"
    for key, action in keys.items():
        window.bind_class(tag, key, then(action))
    window.bind_all("<Escape>", lambda event: Hint.of(window).hide(), add="+")
    window.bind_class("all", "<FocusIn>", lambda event: _give_keys(window, event.widget, tag), add="+")


def _give_keys(window: tk.Tk, widget: object, tag: str) -> None:
    """Put the shortcuts before the widget's own keys, once; other windows (questions, menus) are left alone."""
    if isinstance(widget, tk.Misc) and widget.winfo_toplevel() is window and tag not in widget.bindtags():
        widget.bindtags((tag, *widget.bindtags()))


def _step(window: MainWindow, by: int) -> None:
    names = list(texts.SECTIONS)
    window.show_section(names[(names.index(window.section) + by) % len(names)])


def _with_field(window: MainWindow, action: str) -> None:
    """Do something with the field that has the focus."""
    holding = getattr(window.sections[window.section], "holding", None)
    field = holding(window.focus_get()) if holding else None
    if field is not None:
        getattr(field, action)()
