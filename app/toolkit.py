"""customtkinter and Tk as the window uses them: texts are shown as they are, and fonts of another window are kept.

At each import it copies its fonts to ~/.fonts by truncating the files that are there. A window that is open has them
mapped into memory and would be ended by SIGBUS. All modules of the window import `ctk` from here.

Names come from elsewhere, and any widget may show one. All texts of labels, canvases and menus, and all titles, pass
two functions of tkinter, which let characters that hide or reorder text be seen. What is edited is not changed.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
import tkinter as tk
from pathlib import Path
from typing import Any

from modules.files import printable, visible

__all__ = ["ctk"]


def _copy_if_different(source: str, folder: str) -> None:
    """Like shutil.copy into a folder, but a file of the same content is kept, and another one is replaced whole."""
    target = Path(folder) / Path(source).name
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    partial = target.with_name(f".{target.name}-{os.getpid()}")
    shutil.copyfile(source, partial)
    partial.replace(target)


_copy = shutil.copy
shutil.copy = _copy_if_different  # type: ignore[assignment]
try:
    import customtkinter as ctk  # noqa: TID251  # here, and nowhere else
finally:
    shutil.copy = _copy

_options = tk.Misc._options  # type: ignore[attr-defined]
_title = tk.Wm.wm_title


def _with_visible_texts(widget: tk.Misc, cnf: Any, kw: Any = None) -> tuple[Any, ...]:
    options: tuple[Any, ...] = _options(widget, cnf, kw)
    shown = list(options)
    for place, name in enumerate(options[::2]):
        if name in ("-text", "-label") and isinstance(options[2 * place + 1], str):
            shown[2 * place + 1] = visible(options[2 * place + 1])
    return tuple(shown)


def _with_visible_title(window: tk.Wm, string: str | None = None) -> str | None:
    return _title(window, string if string is None else printable(string, mask=False))


tk.Misc._options = _with_visible_texts  # type: ignore[attr-defined]
tk.Wm.title = tk.Wm.wm_title = _with_visible_title  # type: ignore[method-assign,assignment]

# It asks for the system's colours 33 times a second, which app/widgets/appearance.py does better, and for the scale of
# the screen 10 times, which only Windows can change: together one percent of a core.
_NEVER_MS = 2**31 - 1
ctk.AppearanceModeTracker.update_loop_interval = _NEVER_MS
if sys.platform != "win32":
    ctk.ScalingTracker.update_loop_interval = _NEVER_MS
