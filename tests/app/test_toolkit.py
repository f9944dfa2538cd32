"""The window's toolkit."""

from __future__ import annotations

import re
import subprocess
import sys
import tkinter as tk
from pathlib import Path

from app.monitor.legend import Legend
from app.toolkit import ctk
from app.widgets import theme
from app.widgets.button import Button
from app.widgets.copy_text import CopyText
from app.widgets.inputs import Entry, Menu
from app.widgets.popover import PopupMenu
from app.widgets.table import Table
from app.widgets.text_width import text_width
from app.widgets.tooltip import Tooltip
from tests.app.driver import Driver
from tests.runs import ROOT, environment

NAME = "cat\u202egpj\u200b\x1b.exe"
SHOWN = r"cat\u202egpj\u200b\x1b.exe"


def test_a_second_window_leaves_the_fonts_of_the_first_alone(tmp_path: Path) -> None:
    """A window that is open has them mapped; truncating them would end it with SIGBUS."""
    folder = tmp_path / ".fonts"

    def open_window() -> dict[str, tuple[int, int, int]]:
        argv = [sys.executable, "-c", "import app.toolkit"]
        subprocess.run(argv, check=True, env=environment(HOME=str(tmp_path)), cwd=ROOT)
        stats = {file.name: file.stat() for file in folder.iterdir()}
        return {name: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}

    first = open_window()
    assert len(first) == 3
    assert open_window() == first
    (folder / "Roboto-Medium.ttf").write_bytes(b"damaged")
    assert open_window()["Roboto-Medium.ttf"][2] == first["Roboto-Medium.ttf"][2]


def texts_below(widget: tk.Misc) -> list[str]:
    """What Tk itself has as texts of labels and on canvases."""
    found = [str(widget.tk.call(str(widget), "cget", "-text"))] if widget.winfo_class() == "Label" else []
    if isinstance(widget, tk.Canvas):
        found += [widget.itemcget(item, "text") for item in widget.find_all() if str(widget.type(item)) == "text"]
    return found + [text for child in widget.winfo_children() for text in texts_below(child)]


def test_no_name_looks_like_another_one(driver: Driver) -> None:
    """Whatever shows it, and whenever: with a right-to-left mark it would look like catexe.jpg."""
    panel = tk.Toplevel(driver.window)
    label, canvas, native, button = tk.Label(panel), tk.Canvas(panel), tk.Menu(panel), Button(panel, NAME)
    label.configure(text=NAME)
    canvas.itemconfigure(canvas.create_text(0, 0, text=NAME), text=NAME)
    native.add_command(label=NAME)
    native.entryconfigure("end", label=NAME)
    assert native.entrycget("end", "label") == SHOWN
    for each in (label, canvas, button):
        each.pack()
    ctk.CTkLabel(panel, text=NAME).pack()
    legend, menu, table = (
        Legend(panel),
        Menu(panel, [NAME], print),
        Table(panel, {"run": (NAME, 900)}, (), names=(), stretch=True),
    )
    legend.show([(NAME, theme.TEXT), (NAME, theme.MUTED)])
    menu.show(NAME)
    for widget in (legend, menu, table):
        widget.pack(fill="x")
    table.insert("", "end", iid="row", values=(NAME,))
    CopyText(panel, NAME, NAME, NAME).pack()
    popup = PopupMenu(panel)
    popup.add_command(NAME, detail=NAME, accelerator=NAME)
    panel.update()
    Tooltip.of(panel).show(button, NAME)
    popup.open_below(button)
    panel.title(NAME)
    panel.update()
    assert panel.title() == SHOWN
    found = [text for text in texts_below(driver.window) if text.startswith("cat")]
    assert len(found) >= 12
    assert set(found) == {SHOWN}
    assert panel.tk.call(str(table), "item", "row", "-values")[0] == SHOWN
    assert table.heading("run", "text") == SHOWN
    assert text_width(panel, NAME, theme.tk_font()) == text_width(panel, SHOWN, theme.tk_font())


def test_names_with_line_ends_stay_on_their_line(driver: Driver) -> None:
    panel = tk.Toplevel(driver.window)
    legend, button, popup = Legend(panel), Button(panel), PopupMenu(panel)
    legend.show([("a\nb", theme.TEXT), ("a\tb", theme.MUTED)])
    legend.pack()
    button.pack()
    button.configure(text="a\nb")
    popup.add_command("a\nb")
    panel.title("a\nb")
    panel.update()
    popup.open_below(button)
    panel.update()
    found = [text for text in texts_below(driver.window) if re.match(r"a.+b", text)]
    assert sorted(found) == ["a\\nb", "a\\nb", "a\\nb", "a\\tb"]
    assert panel.title() == "a\\nb"


def test_what_is_edited_or_copied_stays(driver: Driver) -> None:
    panel = tk.Toplevel(driver.window)
    entry, command = Entry(panel), CopyText(panel, "Command", NAME)
    entry.show(NAME)
    command.copy.invoke()
    assert entry.get() == panel.clipboard_get() == NAME
    assert command.content == NAME
    assert command.shown.get("1.0", "end-1c") == SHOWN
