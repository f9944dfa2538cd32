"""Choosing a file or a folder: the system's own window, and on X11, whose Tk has a poor one, a window of ours."""

from __future__ import annotations

import os
import time
import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tkinter import filedialog
from typing import Literal

from app import look, texts
from app.background import Background
from app.controls import Button, Entry, frame, text, then
from app.table import table
from app.windows.dialog import Dialog

Purpose = Literal["open", "save", "folder", "any"]  # any: a file or a folder

MOST = 20_000  # entries of a folder that are listed
ROWS = 12


def choose(
    owner: tk.Misc, purpose: Purpose, title: str, start: Path, endings: Sequence[str] = (), name: str = ""
) -> str:
    """The chosen path; empty if people thought better of it. `endings` such as ".yaml" are those that are listed."""
    start = _existing(start)
    if owner.tk.call("tk", "windowingsystem") == "x11":
        return _Chooser(owner, purpose, title, start, tuple(endings), name).answer()
    types = [(" ".join(endings), " ".join(f"*{ending}" for ending in endings))] if endings else []
    kinds = [*types, (texts.ALL_FILES, "*")]
    if purpose == "folder":
        return filedialog.askdirectory(parent=owner, title=title, initialdir=start)
    if purpose in ("open", "any"):
        return filedialog.askopenfilename(parent=owner, title=title, initialdir=start, filetypes=kinds)
    ending = endings[0] if endings else ""
    return filedialog.asksaveasfilename(
        parent=owner, title=title, initialdir=start, initialfile=name, filetypes=kinds, defaultextension=ending
    )


@dataclass(frozen=True)
class _Item:
    """One line of the list."""

    name: str
    is_folder: bool
    changed: str


class _Chooser:
    """A folder's entries; folders open, files are taken."""

    def __init__(
        self, owner: tk.Misc, purpose: Purpose, title: str, folder: Path, endings: tuple[str, ...], name: str
    ) -> None:
        self._purpose, self._endings = purpose, endings
        self._answer = ""
        self._confirmed = ""
        self._items: list[_Item] = []
        self._dialog = Dialog(owner, title)
        self._background = Background(self._dialog.window)
        body = self._dialog.body
        line = frame(body)
        line.pack(fill="x", pady=(0, look.px(8)))
        Button(line, icon="up", hint=texts.CHOOSER_UP, on=look.CARD, command=self._up).pack(side="left", padx=(0, 4))
        Button(line, icon="home", hint=texts.CHOOSER_HOME, on=look.CARD, command=self._home).pack(side="left")
        self._place = Entry(line, width=480)
        self._place.pack(side="left", padx=(look.px(8), 0), fill="x", expand=True)
        self._place.line.bind("<Return>", then(lambda: self._go(Path(self._place.get()))))
        self._make_list(body)
        self._name = Entry(body, width=560)
        if purpose in ("open", "save"):
            self._name.pack(fill="x", pady=(look.px(8), 0))
        self._name.show(name)
        self._said = text(body, "", "small", colour=look.WARN, wrap=560)
        self._said.pack(anchor="w", pady=(look.px(6), 0))
        self._dialog.button(texts.CANCEL, self._dialog.close)
        take = {"open": texts.OPEN, "save": texts.SAVE, "folder": texts.CHOOSER_TAKE, "any": texts.CHOOSER_TAKE}[
            purpose
        ]
        self._dialog.button(take, self._take, "accent")
        self._dialog.on_return(self._entered)
        self._go(folder)

    def answer(self) -> str:
        """Wait for what people choose."""
        window = self._dialog.show()
        (self._name.line if self._purpose == "save" else self._list).focus_set()
        window.wait_window()
        return self._answer

    def _make_list(self, body: tk.Misc) -> None:
        box = frame(body)
        box.pack(fill="both", expand=True)
        self._list = table(box, {"name": (texts.CHOOSER_NAME, 400), "changed": (texts.CHOOSER_CHANGED, 150)})
        self._list.configure(height=ROWS)
        self._list.bind("<<TreeviewSelect>>", lambda event: self._selected())
        self._list.bind("<Double-Button-1>", lambda event: self._entered())
        self._list.bind("<BackSpace>", lambda event: self._up())
        self._list.bind("<Key>", self._jump, add="+")

    def _go(self, folder: Path) -> None:
        self._said.configure(text="")
        self._background.run(lambda: _listing(folder, self._endings, self._purpose), self._show, self._complain)
        self._folder = folder

    def _show(self, items: list[_Item]) -> None:
        self._items = items
        self._place.show(str(self._folder))
        self._list.delete(*self._list.get_children())
        for number, item in enumerate(items):
            mark = "▸  " if item.is_folder else "    "
            self._list.insert("", "end", iid=str(number), values=(f"{mark}{item.name}", item.changed))
        if items and self._purpose != "save":
            self._list.focus("0")
            self._list.selection_set("0")

    def _complain(self, words: str) -> None:
        self._said.configure(text=words)
        self._folder = Path(self._place.get()).parent if not Path(self._place.get()).is_dir() else self._folder

    def _item(self) -> _Item | None:
        chosen = self._list.selection()
        return self._items[int(chosen[0])] if chosen else None

    def _selected(self) -> None:
        item = self._item()
        if item is not None and not item.is_folder:
            self._name.show(item.name)

    def _entered(self) -> None:
        """Return, or a double click: into the folder, or take what is named."""
        focused = str(self._dialog.window.focus_get())
        item = self._item()
        if item is not None and item.is_folder and focused == str(self._list):
            self._go(self._folder / item.name)
        elif focused == str(self._list) or focused == str(self._name.line):
            self._take()

    def _take(self) -> None:
        if self._purpose in ("folder", "any"):
            item = self._item()
            self._finish(self._folder / item.name if item is not None else self._folder)
            return
        name = self._name.get().strip()
        if not name:
            if (item := self._item()) is not None and item.is_folder:
                self._go(self._folder / item.name)
            return
        file = self._folder / name
        if file.is_dir():
            self._go(file)
        elif self._purpose == "open" and not file.is_file():
            self._said.configure(text=texts.CHOOSER_NO_FILE.format(name=name))
        elif self._purpose == "save":
            file = file if file.suffix or not self._endings else file.with_name(f"{name}{self._endings[0]}")
            if file.exists() and self._confirmed != str(file):
                self._confirmed = str(file)
                self._said.configure(text=texts.CHOOSER_REPLACE.format(name=file.name))
            else:
                self._finish(file)
        else:
            self._finish(file)

    def _finish(self, path: Path) -> None:
        self._answer = str(path)
        self._dialog.close()

    def _up(self) -> None:
        self._go(self._folder.parent)

    def _home(self) -> None:
        self._go(Path.home())

    def _jump(self, event: tk.Event[tk.Misc]) -> None:
        """A letter goes to the next entry that begins with it."""
        chosen = self._list.selection()
        start = int(chosen[0]) + 1 if chosen else 0
        order = [*range(start, len(self._items)), *range(start)]
        for number in order:
            if event.char.strip() and self._items[number].name.lower().startswith(event.char.lower()):
                self._list.selection_set(str(number))
                self._list.focus(str(number))
                self._list.see(str(number))
                return


def _existing(start: Path) -> Path:
    """The folder, or the nearest above it that exists; the user's own where there is none."""
    try:
        start = start.absolute()
    except OSError:
        return Path.home()  # the working folder is gone
    return next((place for place in (start, *start.parents) if place.is_dir()), Path.home())


def _listing(folder: Path, endings: tuple[str, ...], purpose: Purpose) -> list[_Item]:
    """The visible entries, folders first; raises OSError."""
    found: list[_Item] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir()
            wanted = is_folder or (purpose != "folder" and (not endings or entry.name.lower().endswith(endings)))
            if wanted and not entry.name.startswith("."):
                try:
                    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.stat().st_mtime))
                except OSError:
                    changed = ""  # a link to nothing
                found.append(_Item(entry.name, is_folder, changed))
            if len(found) >= MOST:
                break
    return sorted(found, key=lambda item: (not item.is_folder, item.name.lower()))
