"""The welcome dialog of the first start."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from app.home import current_folder, move_home, with_tilde
from app.shell.files import Files
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Button, Style, frame, text
from app.widgets.clickable import ClickableRow
from app.windows.chooser import choose_path
from app.windows.dialog import Dialog


def show_welcome(parent: tk.Misc, state: AppState, files: Files, open_presets: Callable[[], object]) -> tk.Toplevel:
    """Show the ways to start, each with a button."""
    dialog = Dialog(
        parent,
        "Welcome to Tandem",
        "Train image models on one GPU or many machines. How would you like to start?",
    )
    state.preferences.welcomed = True
    below = frame(dialog.body)
    where = text(below, "", "small", colour=theme.MUTED, wrap=520)

    def say_where() -> None:
        place, here = (
            with_tilde(current_folder()),
            "" if state.preferences.home else "the folder you start Tandem from: ",
        )
        where.configure(text=f"Your runs, images and settings are kept in {here}{place}.")

    def change() -> None:
        chosen = choose_path(dialog.window, "folder", "Folder of your files: runs, cache, images", current_folder())
        try:
            if chosen:
                move_home(state.preferences, Path(chosen))
            say_where()
        except OSError as error:
            where.configure(text=f"{chosen} cannot be used: {error.strerror or error}. Choose another folder.")

    def demo() -> None:
        dialog.close()
        files.open_preset("demo")

    def presets() -> None:
        dialog.close()
        open_presets()

    def other_trainer() -> None:
        dialog.close()
        files.import_settings()

    options: tuple[tuple[str, str, str, str, Callable[[], None]], ...] = (
        (
            "play",
            "The demo",
            "Try the demo",
            "Generates 1,200 small images. Then press Train: it takes about four minutes, even without a GPU.",
            demo,
        ),
        ("presets", "A preset", "Open a preset", "Ready-made settings; change what you like.", presets),
        (
            "open",
            "Another trainer",
            "Import settings",
            "From OneTrainer, kohya's scripts and GUI, and others.",
            other_trainer,
        ),
        ("plus", "Your own settings", "Start from defaults", "Choose a model, add your images, train.", dialog.close),
    )
    for icon, title, label, help_, action in options:
        row = ClickableRow(dialog.body)
        row.pack(fill="x", ipady=theme.px(6))
        icons.label(row, icon, 24, theme.ACCENT_TEXT, theme.CARD).pack(side="left", padx=theme.px(16))
        labels = frame(row)
        labels.pack(side="left", fill="x", expand=True)
        text(labels, title, "heading").pack(anchor="w")
        text(labels, help_, colour=theme.MUTED, wrap=330).pack(anchor="w")
        style: Style = "accent" if icon == "play" else "plain"
        button = Button(row, label, action, style=style, bg=theme.CARD, width=170)
        button.pack(side="right", padx=(24, 12))
        row.on_click(action)
        if icon == "play":
            dialog.window.after_idle(button.focus_set)
    say_where()
    where.pack(side="left")
    Button(below, "Change…", change, style="quiet", bg=theme.CARD).pack(side="right", padx=(24, 12))
    below.pack(fill="x", pady=(theme.px(12), 0))
    text(dialog.body, "F1 lists the keyboard shortcuts.", "small", colour=theme.MUTED).pack(anchor="w")
    return dialog.show()
