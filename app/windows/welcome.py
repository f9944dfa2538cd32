"""The first start: ways to begin."""

from __future__ import annotations

import subprocess
import sys
import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app import icons, look, texts
from app.controls import Button, Style, frame, text
from app.windows.dialog import Dialog
from modules.config import ConfigError

if TYPE_CHECKING:
    from app.main_window import MainWindow

DRAW_PICTURES = Path(__file__).resolve().parents[2] / "scripts" / "make_demo_data.py"


def show_welcome(window: MainWindow) -> tk.Toplevel:
    """Each way is one large button."""
    dialog = Dialog(window, texts.WELCOME_TITLE, texts.WELCOME_TEXT)
    window.preferences.welcomed = True
    said = text(dialog.body, texts.WELCOME_LATER, "small", colour=look.MUTED)

    def demo() -> None:
        said.configure(text=texts.WELCOME_DRAWING)
        window.state_.background.run(draw_demo_pictures, lambda done: drawn(), lambda why: said.configure(text=why))

    def drawn() -> None:
        dialog.close()
        window.files.open_preset("demo")

    def presets() -> None:
        dialog.close()
        window.open_presets()

    def other_trainer() -> None:
        dialog.close()
        window.files.import_settings()

    ways: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
        ("play", texts.WELCOME_DEMO, texts.WELCOME_DEMO_HELP, demo),
        ("presets", texts.WELCOME_PRESET, texts.WELCOME_PRESET_HELP, presets),
        ("open", texts.WELCOME_IMPORT, texts.WELCOME_IMPORT_HELP, other_trainer),
        ("plus", texts.WELCOME_OWN, texts.WELCOME_OWN_HELP, dialog.close),
    )
    for icon, title, help_, action in ways:
        row = frame(dialog.body)
        row.pack(fill="x", pady=look.px(6))
        icons.label(row, icon, 24, look.ACCENT_TEXT, look.CARD).pack(side="left", padx=(0, look.px(16)))
        words = frame(row)
        words.pack(side="left", fill="x", expand=True)
        text(words, title, "heading").pack(anchor="w")
        text(words, help_, colour=look.MUTED, wrap=330).pack(anchor="w")
        style: Style = "accent" if icon == "play" else "plain"
        button = Button(row, title, action, style=style, on=look.CARD, width=170)
        button.pack(side="right", padx=(24, 0))
        if icon == "play":
            dialog.window.after_idle(button.focus_set)
    said.pack(anchor="w", pady=(look.px(12), 0))
    return dialog.show()


def draw_demo_pictures() -> None:
    """The demo's data set; drawn once."""
    done = subprocess.run(
        [sys.executable, str(DRAW_PICTURES)], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(lines[-1] if lines else texts.WELCOME_NOT_DRAWN)
