"""Doing with the real window what people do: clicking, typing, choosing."""

from __future__ import annotations

import subprocess
import time
import tkinter as tk
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tkinter import ttk
from typing import Any, Self

from app.form.field import Field
from app.form.interval import IntervalField
from app.form.line import TextField
from app.form.long_text import LongTextField
from app.form.menu import MenuField
from app.form.part import PartField
from app.form.switch import SwitchField
from app.form.words import as_text
from app.inputs import Entry, TextBox
from app.main_window import MainWindow
from app.preferences import Preferences
from app.sidebar import section_of

PATIENCE_S = 60.0  # a guard against hangs; nothing takes that long


class Driver:
    """A window and ways to use it."""

    def __init__(self, window: MainWindow) -> None:
        self.window = window
        self.draft = window.state_.draft
        self.problems: list[str] = []
        window.report_callback_exception = self._defect

    @classmethod
    @contextmanager
    def open(cls, config_file: Path | None = None, **habits: Any) -> Iterator[Self]:
        """Open the window with these habits; at the end nothing may have gone wrong in it."""
        Preferences(**{"welcomed": True, "mode": "dark", "advanced": True, **habits}).save()
        window = opened(config_file)
        driver = cls(window)
        try:
            window.event_generate("<Motion>", warp=True, x=2, y=2)  # away from everything that has a hint
            driver.settle()
            window.focus_force()
            driver.settle()
            yield driver
            if driver.is_open:
                driver.settle()
        finally:
            if driver.is_open:
                window.destroy()
        assert not driver.problems

    @property
    def is_open(self) -> bool:
        """Whether the window has not been closed yet."""
        try:
            return bool(self.window.winfo_exists())
        except tk.TclError:
            return False

    def settle(self) -> None:
        """Let everything happen that is due."""
        for _ in range(3):
            self.window.update()

    def wait(self, condition: Callable[[], object], what: str = "") -> None:
        """Let things happen until the condition holds."""
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, f"never came about: {what}"
            self.window.update()
            time.sleep(0.01)

    def later(self, condition: Callable[[], object], action: Callable[[], object]) -> None:
        """Do something once the condition holds, while a dialog waits for its answer."""
        if condition():
            action()
        else:
            self.window.after(20, lambda: self.later(condition, action))

    def listed_files(self) -> list[str]:
        """What the chooser of files lists."""
        found = [one for dialog in self.dialogs() for one in _all(dialog) if isinstance(one, ttk.Treeview)]
        return [str(tree.item(row, "values")[0]).lstrip("▸ ") for tree in found for row in tree.get_children()]

    def field(self, path: str) -> Field:
        """The field of a setting, in sight."""
        self.window.show_section("model" if path.startswith("family_options") else section_of(path))
        self.settle()
        found = self.window.sections[self.window.section].find(path)
        assert found is not None, f"no field for {path}"
        return found

    def set(self, path: str, value: object) -> None:
        """Set a field through its control."""
        field = self.field(path)
        match field:
            case SwitchField():
                if field.control.get() != value:
                    click(field.control)
            case MenuField():
                assert value in field.control.choices
                field.control.choose(str(value))
            case IntervalField():
                count, _, unit = str(value).rpartition(" ")
                field.unit.choose(unit)
                if unit != "never":
                    write(field.control, count)
            case LongTextField():
                write(field.control, field.text_of(value))
            case PartField() if field.control is field.menu:
                assert value in field.menu.choices
                field.menu.choose(str(value))
            case PartField():
                write(field.control, str(value))
            case TextField():
                write(field.control, as_text(value))
            case _:
                raise AssertionError(f"{type(field).__name__} is not driven by any test")
        self.settle()

    def press(self, *keys: str) -> None:
        """Press real keys, by xdotool: "ctrl+s", "Tab"."""
        for key in keys:
            self._xdotool("key", key)

    def type(self, text: str) -> None:
        """Type real letters, by xdotool."""
        self._xdotool("type", "--delay", "5", text)

    def save(self, file: Path) -> None:
        """Save into a file as if the draft had come from there."""
        self.draft.file = file
        assert self.window.files.save()

    def dialogs(self) -> list[tk.Toplevel]:
        """The windows that are open over the main one."""
        self.settle()
        found = [child for child in self.window.winfo_children() if isinstance(child, tk.Toplevel)]
        return [child for child in found if child.winfo_viewable() and not child.overrideredirect()]  # no hints

    def words(self, widget: tk.Misc | None = None) -> str:
        """All that can be read in a window."""
        widget = widget or self.window
        own = []
        if isinstance(widget, tk.Label) and widget.winfo_viewable():
            own = [str(widget.cget("text"))]
        return "\n".join([*own, *(self.words(child) for child in widget.winfo_children())]).strip()

    def answer(self, words: str) -> None:
        """Press the button with these words in the dialog."""
        (dialog,) = self.dialogs()
        next(one for one in _all(dialog) if hasattr(one, "invoke") and one.cget("text") == words).invoke()
        if self.is_open:
            self.settle()

    def _xdotool(self, *arguments: str) -> None:
        """What was pressed comes back through the X server a moment later."""
        subprocess.run(["xdotool", *arguments], check=True)
        for _ in range(5):
            self.settle()
            time.sleep(0.01)
        self.settle()

    def _defect(self, kind: type[BaseException], error: BaseException, trace: object) -> None:
        self.problems.append(f"{kind.__name__}: {error}")


def opened(config_file: Path | None = None, run_folder: Path | None = None) -> MainWindow:
    """A main window; one that cannot be made leaves nothing behind that the next test would meet."""
    try:
        return MainWindow(config_file, run_folder)
    except BaseException:
        left = tk._get_default_root()  # type: ignore[attr-defined]
        if left is not None:
            left.destroy()
        raise


def click(widget: tk.Misc) -> None:
    """The left button, in the middle."""
    x, y = widget.winfo_width() // 2, widget.winfo_height() // 2
    widget.event_generate("<ButtonPress-1>", x=x, y=y)
    widget.event_generate("<ButtonRelease-1>", x=x, y=y)


def write(control: Entry | TextBox, words: str) -> None:
    """Put other text into a control, as a paste does."""
    control.focus_set()
    control.update()
    if isinstance(control, Entry):
        assert str(control.line.cget("state")) == "normal", "the field is greyed"
        control.line.delete(0, tk.END)
        control.line.insert(0, words)
    else:
        assert str(control.text.cget("state")) == "normal", "the field is greyed"
        control.text.delete("1.0", tk.END)
        control.text.insert("1.0", words)
    control.update()


def _all(widget: tk.Misc) -> Iterator[Any]:
    for child in widget.winfo_children():
        yield child
        yield from _all(child)
