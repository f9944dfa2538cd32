"""File and folder chooser: the system dialog, or our own on X11, where Tk's is poor, and for either of both."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Sequence
from pathlib import Path
from tkinter import filedialog

from app.preferences import Preferences
from app.windows.file_dialog import FileDialog
from app.windows.folder_listing import IMAGES, Counted, Purpose


def choose_path(
    owner: tk.Misc,
    purpose: Purpose,
    title: str,
    start: Path,
    endings: Sequence[str] = (),
    name: str = "",
    counted: Counted = IMAGES,
) -> str:
    """The chosen path, empty if cancelled. Only files with one of `endings`, e.g. ".yaml", are listed.

    Of folders it shows how much of what is `counted` they hold.

    Without a `start` (`Path()`), or one that is not there, it opens where the last such dialog was left, else the last
    one of any kind, else in the current folder.
    """
    places, kind = _places(owner), " ".join([purpose, *endings])
    chosen = start if os.path.isfile(start) else None
    if start == Path() or not (start.is_absolute() or os.path.exists(start)):
        start = Path(places.get(kind) or next(reversed(places.values()), ""))
    start = _existing(start)
    answer = _ask(owner, purpose, title, start, endings, chosen.name if chosen else name, counted)
    if answer:
        places.pop(kind, None)  # the last one stands last
        places[kind] = str(Path(answer).parent)
    return answer


def _places(owner: tk.Misc) -> dict[str, str]:
    """Where the dialogs were left, by what they choose: kept in the window's preferences."""
    preferences = getattr(owner.nametowidget("."), "preferences", None)
    return preferences.places if isinstance(preferences, Preferences) else {}


def _ask(
    owner: tk.Misc, purpose: Purpose, title: str, start: Path, endings: Sequence[str], name: str, counted: Counted
) -> str:
    if purpose == "any" or owner.tk.call("tk", "windowingsystem") == "x11":  # system dialogs choose either kind
        return FileDialog(owner, purpose, title, start, tuple(endings), name, counted).answer()
    types = [(" ".join(endings), " ".join(f"*{ending}" for ending in endings))] if endings else []
    kinds = [*types, ("All files", "*")]
    if purpose == "folder":
        return filedialog.askdirectory(parent=owner, title=title, initialdir=start)
    if purpose == "open":
        return filedialog.askopenfilename(parent=owner, title=title, initialdir=start, filetypes=kinds)
    ending = endings[0] if endings else ""
    return filedialog.asksaveasfilename(
        parent=owner, title=title, initialdir=start, initialfile=name, filetypes=kinds, defaultextension=ending
    )


def _existing(start: Path) -> Path:
    """The folder, or its nearest existing parent; the home folder if there is none."""
    try:
        start = start.absolute()
    except OSError:
        return Path.home()  # the working directory was deleted
    return next((folder for folder in (start, *start.parents) if os.path.isdir(folder)), Path.home())
