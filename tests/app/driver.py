"""Drives the real window as a user does: clicking, typing, choosing."""

from __future__ import annotations

import subprocess
import time
import tkinter as tk
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tkinter import ttk
from typing import Any, Self

from app.form.choice_fields import MenuField, SwitchField
from app.form.family_fields import SubmoduleField
from app.form.setting_text import format_value
from app.form.text_fields import IntervalField, LongTextField, TextField
from app.main_window import MainWindow
from app.preferences import Preferences
from app.sections.places import section_of
from app.widgets.button import Button
from app.widgets.inputs import Entry, TextBox

TIMEOUT_S = 200.0  # guards against hangs; on a busy machine, the start of two programs with torch takes a minute


class Driver:
    """A window and methods to use it."""

    def __init__(self, window: MainWindow) -> None:
        self.window = window
        self.draft = window.state_.draft
        self.errors: list[str] = []
        window.report_callback_exception = self._report_bug
        self._destroy, window.destroy = window.destroy, self._destroy_focused  # type: ignore[method-assign]

    @classmethod
    @contextmanager
    def open(
        cls, config_file: Path | None = None, *, keeps_session: bool = False, **preferences: Any
    ) -> Iterator[Self]:
        """Open the window with these preferences; fail if any callback raised."""
        Preferences(**{"welcomed": True, "mode": "dark", "advanced": True, **preferences}).save()
        window = open_window(config_file, keeps_session=keeps_session)
        driver = cls(window)
        try:
            window.event_generate("<Motion>", warp=True, x=2, y=2)  # away from everything with a tooltip
            driver.settle()
            driver.wait(lambda: not window._curtain.winfo_exists(), "a window that takes clicks")
            window.focus_force()
            driver.settle()
            yield driver
            if driver.is_open:
                driver.settle()
        finally:
            if driver.is_open:
                window.destroy()
        assert not driver.errors, driver.errors

    def _destroy_focused(self) -> None:
        # Without a window manager Tk 8.6 keeps a pointer to what had the focus when the mouse left its window, and
        # reads it when the next window of a process takes the focus: a crash. To destroy what has the focus clears it.
        self.window.focus_force()
        self._destroy()

    @property
    def is_open(self) -> bool:
        """Whether the window has not been closed yet."""
        try:
            return bool(self.window.winfo_exists())
        except tk.TclError:
            return False

    def follow_no_run(self) -> None:
        """As before the first run."""
        if self.window.state_.run is not None:
            self.window.state_.run.detach()
            self.window.state_.run = None

    def settle(self) -> None:
        """Process all pending events, until the page in sight is complete."""
        for _ in range(3):
            self.window.update()
        while self.is_open and self.window.state_.slices.is_busy:
            self.window.update()

    def wait(self, condition: Callable[[], object], what: str = "") -> None:
        """Process events until the condition holds."""
        until = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < until, f"timed out waiting for {what}"
            self.window.update()
            time.sleep(0.01)

    def later(self, condition: Callable[[], object], action: Callable[[], object]) -> None:
        """Do something once a dialog that waits for its answer has the keyboard, and the condition holds.

        If it does not in time, the test fails.
        """
        until = time.monotonic() + TIMEOUT_S

        def look() -> None:
            if self._dialog_has_keyboard() and condition():
                action()
            elif time.monotonic() < until:
                self.window.after(20, look)
            else:
                self.errors.append(f"timed out; the window shows: {self.text()}")
                for dialog in self.dialogs():
                    dialog.destroy()  # which else waits for ever

        look()

    def in_chooser(self, action: Callable[[], object]) -> None:
        """Do something once a dialog that is opened next, and waited for, has the keyboard in one of its controls."""
        before = len(self.dialogs())
        self.later(lambda: len(self.dialogs()) > before, action)

    def _dialog_has_keyboard(self) -> bool:
        dialogs = self.dialogs()
        return bool(dialogs) and str(self.window.tk.call("focus")).startswith(f"{dialogs[-1]}.")

    def listed_files(self) -> list[str]:
        """The entries of the file chooser."""
        found = [one for dialog in self.dialogs() for one in everything(dialog) if isinstance(one, ttk.Treeview)]
        return [str(tree.item(row, "values")[0]).lstrip("▸ ") for tree in found for row in tree.get_children()]

    def field(self, path: str) -> Any:
        """The field of a setting, made visible."""
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
                write(field.control, field.to_text(value))
            case SubmoduleField() if field.control is field.menu:
                assert value in field.menu.choices
                field.menu.choose(str(value))
            case SubmoduleField():
                assert isinstance(field.control, Entry)
                write(field.control, str(value))
            case TextField():
                write(field.control, format_value(value))
            case _:
                raise AssertionError(f"{type(field).__name__} has no test driver")
        self.settle()

    def press(self, *keys: str) -> None:
        """Press real keys with xdotool: "ctrl+s", "Tab"."""
        for key in keys:
            self._xdotool("key", key)

    def type(self, text: str) -> None:
        """Type real characters with xdotool."""
        self._xdotool("type", "--delay", "5", text)

    def type_over(self, widget: tk.Misc, text: str) -> None:
        """Click into an entry and type over what it has."""
        self.click_really(widget)
        self.press("ctrl+a")
        self.type(text)

    def search_and_type(self, path: str, text: str) -> None:
        """Find a setting by its name with the search and type over what its field has, all by keys."""
        self.press("ctrl+k")
        self.type(path)
        self.press("Return", "ctrl+a")
        self.type(text)

    def go_to(self, section: str, tab: str = "") -> Any:
        """Click a section in the sidebar, and the page of this title in it; the section."""
        self.click_really(self.window.sidebar.entries[section])
        if tab:
            self.click_button(tab)
        return self.window.sections[section]

    def click_really(self, widget: tk.Misc) -> None:
        """Click the middle of a widget with the X server's pointer, as bindings of parents and of "all" see it, too."""
        self.settle()
        self._click_middle(widget)

    def click_button(self, label: str) -> None:
        """Click the button with this label in the topmost dialog, or else in the window."""
        places: list[tk.Misc] = [self.window, *self.dialogs()]  # which settles: what is drawn again has other buttons
        found = [one for one in everything(places[-1]) if hasattr(one, "invoke") and one.cget("text") == label]
        self._click_middle(next(one for one in found if one.winfo_viewable()))  # with no event in between

    def _click_middle(self, widget: tk.Misc) -> None:
        x = widget.winfo_rootx() + widget.winfo_width() // 2
        y = widget.winfo_rooty() + widget.winfo_height() // 2
        self._xdotool("mousemove", str(x), str(y), "click", "1")

    def wheel_over(self, widget: tk.Misc, notches: int) -> None:
        """Turn the wheel down, or up by a negative number, over the top of a widget, with the X server's pointer."""
        self.settle()
        x, y = widget.winfo_rootx() + widget.winfo_width() // 2, widget.winfo_rooty() + 5
        button = 5 if notches > 0 else 4
        self._xdotool("mousemove", str(x), str(y), "click", "--repeat", str(abs(notches)), "--delay", "1", str(button))

    def save(self, file: Path) -> None:
        """Save to a file as if the draft had been opened from it."""
        self.draft.file = file
        assert self.window.files.save()

    def dialogs(self) -> list[tk.Toplevel]:
        """The windows that are open over the main one."""
        self.settle()
        found = [child for child in self.window.winfo_children() if isinstance(child, tk.Toplevel)]
        return [child for child in found if child.winfo_viewable() and not child.overrideredirect()]  # no tooltips

    def text(self, widget: tk.Misc | None = None) -> str:
        """All visible text of a window."""
        widget = widget or self.window
        own = []
        if isinstance(widget, (tk.Label, Button)) and widget.winfo_viewable():
            own = [str(widget.cget("text"))]
        return "\n".join([*own, *(self.text(child) for child in widget.winfo_children())]).strip()

    def label(self, place: tk.Misc, words: str) -> tk.Label:
        """The label in a window whose text begins with these words."""
        found = (one for one in everything(place) if isinstance(one, tk.Label))
        return next(one for one in found if str(one.cget("text")).startswith(words))

    def enlarge(self, percent: int) -> None:
        """Enlarge everything with Ctrl+Plus."""
        while self.window.preferences.scale < percent:
            self.press("ctrl+plus")
        assert self.window.preferences.scale == percent

    def beside(self, place: tk.Misc, title: str) -> tk.Misc:
        """The control in the row of this title."""
        label = self.label(place, title)
        (area,) = label.master.grid_slaves(row=int(label.grid_info()["row"]), column=1)
        found: tk.Misc = area.winfo_children()[0]
        return found

    def answer(self, label: str) -> None:
        """Press the button with this label in the dialog."""
        (dialog,) = self.dialogs()
        next(one for one in everything(dialog) if hasattr(one, "invoke") and one.cget("text") == label).invoke()
        if self.is_open:
            self.settle()

    def _xdotool(self, *arguments: str) -> None:
        """Run xdotool; its events arrive through the X server a moment later."""
        self.window.winfo_pointerxy()  # waits for the server, so that everything is where Tk has put it
        subprocess.run(["xdotool", *arguments], check=True)
        for _ in range(6):
            self.window.winfo_pointerxy()  # as before: it has handled what xdotool sent
            self.settle()
            time.sleep(0.01)
        self.settle()

    def _report_bug(self, kind: Any, error: BaseException, trace: object) -> None:
        self.errors.append(f"{kind.__name__}: {error}")


def open_window(
    config_file: Path | None = None, run_folder: Path | None = None, *, keeps_session: bool = False
) -> MainWindow:
    """Open a main window; if that fails, leave nothing behind for the next test."""
    try:
        return MainWindow(config_file, run_folder, keeps_session=keeps_session)
    except BaseException:
        left = tk._get_default_root()  # type: ignore[attr-defined]
        if left is not None:
            left.destroy()
        raise


def click(widget: tk.Misc) -> None:
    """Click the middle of a widget with the left button."""
    x, y = widget.winfo_width() // 2, widget.winfo_height() // 2
    widget.event_generate("<ButtonPress-1>", x=x, y=y)
    widget.event_generate("<ButtonRelease-1>", x=x, y=y)


def write(control: Entry | TextBox, content: str) -> None:
    """Replace the text of a control, as pasting does."""
    control.focus_set()
    control.update()
    if isinstance(control, Entry):
        assert str(control.line.cget("state")) == "normal", "the field is greyed"
        control.line.delete(0, tk.END)
        control.line.insert(0, content)
    else:
        assert str(control.text.cget("state")) == "normal", "the field is greyed"
        control.text.delete("1.0", tk.END)
        control.text.insert("1.0", content)
    control.update()


def everything(widget: tk.Misc) -> Iterator[Any]:
    """All widgets in it, at any depth."""
    for child in widget.winfo_children():
        yield child
        yield from everything(child)
