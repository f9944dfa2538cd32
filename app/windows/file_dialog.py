"""Our own file and folder dialog, where the system has a poor one or none for what is chosen."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Sequence
from pathlib import Path

from app.background import Background
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Switch, frame, handler, text
from app.widgets.table import table
from app.windows.dialog import Dialog
from app.windows.folder_listing import IMAGES, Counted, Item, Purpose, list_folder
from modules.files import printable

ROWS = 12
COUNTED_AT_ONCE = 8  # folders
TYPED_TOGETHER_MS = 1000  # letters typed in the list; later ones begin a name anew
PATH_CHARACTERS = ("/", "~")


class FileDialog:
    """Lists a folder's entries; folders open, files are accepted.

    Where a folder may be chosen, it is the typed path, else the selected entry, else the folder that is listed.
    """

    def __init__(
        self,
        owner: tk.Misc,
        purpose: Purpose,
        title: str,
        folder: Path,
        endings: tuple[str, ...],
        name: str,
        counted: Counted = IMAGES,
    ) -> None:
        self._purpose, self._endings, self._counted = purpose, endings, counted
        self._listed = endings  # none: files with any
        self._answer = ""
        self._confirmed = ""
        self._prefix, self._typed_at = "", 0  # typed in the list, and when, in ms
        self._folder, self._wanted = folder, name  # what is listed, and the entry to select in it
        self._items: list[Item] = []
        self._dialog = Dialog(owner, title)
        self._background = Background(self._dialog.window)
        body = self._dialog.body
        line = frame(body)
        line.pack(fill="x", pady=(0, theme.px(8)))
        Button(line, icon="up", tooltip="Parent folder (Backspace)", bg=theme.CARD, command=self._up).pack(
            side="left", padx=(0, 4)
        )
        Button(line, icon="home", tooltip="Home folder", bg=theme.CARD, command=self._home).pack(side="left")
        self._path_entry = Entry(line, lambda _: self._show_choice(), width=480)
        self._path_entry.pack(side="left", padx=(theme.px(8), 0), fill="x", expand=True)
        self._path_entry.line.bind("<Return>", handler(self._open_typed))
        box = self._build_list(body)
        foot = frame(body)
        foot.pack(side="bottom", fill="x")  # before the list, which gives way on a low screen
        box.pack(fill="both", expand=True)
        if hint := _hint(purpose, endings):
            self._build_hint(foot, hint)
        self._name = Entry(foot, width=560)
        if purpose in ("open", "save"):
            self._name.pack(fill="x", pady=(theme.px(8), 0))
        self._name.show(name)
        self._choice = text(foot, "", "small", colour=theme.MUTED, wrap=560)
        if purpose in ("folder", "any"):
            self._choice.pack(anchor="w", pady=(theme.px(8), 0))
        self._message = text(foot, "", "small", colour=theme.WARN, wrap=560)
        self._message.pack(anchor="w", pady=(theme.px(6), 0))
        self._dialog.button("Cancel", self._dialog.close)
        take = {"open": "Open", "save": "Save", "folder": "Choose", "any": "Choose"}[purpose]
        self._dialog.button(take, self._accept, "accent")
        self._dialog.on_return(self._on_return)
        self._open_folder(folder)

    def answer(self) -> str:
        """Show the dialog and wait for the answer."""
        window = self._dialog.show()
        (self._name.line if self._purpose == "save" else self._list).focus_set()
        self._name.select_range(0, len(Path(self._name.get()).stem))  # what is typed replaces it and keeps the ending
        window.wait_window()
        return self._answer

    def _build_list(self, body: tk.Misc) -> tk.Frame:
        box = frame(body)
        columns = {"name": ("Name", 400), "changed": ("Modified", 150)}
        if self._purpose == "folder":
            columns = {
                "name": ("Name", 320),
                "count": (f"{self._counted.word.capitalize()}s", 80),
                "changed": ("Modified", 150),
            }
        self._list = table(box, columns, ("count",))
        self._list.configure(height=ROWS)
        self._list.bind("<<TreeviewSelect>>", lambda event: self._on_select())
        self._list.bind("<Double-Button-1>", lambda event: self._on_return())
        self._list.bind("<BackSpace>", lambda event: self._up())
        for key in ("<Down>", "<Up>"):
            self._list.bind(key, lambda event: self._select_first())
        self._list.bind("<Key>", self._type_ahead, add="+")
        for key in ("<Control-a>", "<Control-l>"):
            self._list.bind(key, handler(self._retype_path))
        return box

    def _build_hint(self, body: tk.Misc, hint: str) -> None:
        line = frame(body)
        line.pack(fill="x", pady=(theme.px(6), 0))
        text(line, hint, "small", colour=theme.MUTED, wrap=400).pack(side="left")
        Switch(line, self._show_all).pack(side="right")
        text(line, "All files", "small", colour=theme.MUTED).pack(side="right", padx=theme.px(8))

    def _show_all(self, is_on: bool) -> None:
        """List the files with other endings, too, or no longer."""
        self._listed = () if is_on else self._endings
        self._open_folder(self._folder)

    def _open_folder(self, folder: Path) -> None:
        self._message.configure(text="")
        self._path_entry.show(str(folder))  # what is accepted from now on, also before it is listed
        self._background.run(
            lambda: list_folder(folder, self._listed, self._purpose),
            lambda items: self._show(folder, items),
            self._show_failure,
        )

    def _show_failure(self, message: str) -> None:
        """A folder cannot be listed, so it is not chosen either."""
        self._message.configure(text=message)
        self._choice.configure(text="")

    def _open_typed(self) -> None:
        """List the typed folder, and take it at the second Return; take the typed file."""
        path = self._typed()
        if path == self._folder and self._purpose in ("folder", "any"):
            self._accept()
        elif os.path.isfile(path) and self._purpose in ("open", "any"):
            self._finish(path)
        else:
            self._open_folder(path)

    def _typed(self) -> Path:
        """What the path field says; a name alone is one in the listed folder."""
        return self._folder / os.path.expanduser(self._path_entry.get().strip())

    def _show(self, folder: Path, items: list[Item]) -> None:
        if self._typed() != folder:
            return  # meanwhile another path was typed
        self._folder, self._items = folder, items
        self._list.delete(*self._list.get_children())
        for number, item in enumerate(items):
            mark = "▸  " if item.is_folder else "    "
            self._list.insert("", "end", iid=str(number), values=self._row(f"{mark}{item.name}", item.changed))
        named = [number for number, item in enumerate(items) if self._purpose != "save" and item.name == self._wanted]
        for number in named or [0] * (bool(items) and self._purpose == "open"):
            self._select(number)
        self._show_choice()
        if self._purpose == "folder":
            self._count(folder, 0)

    def _row(self, name: str, changed: str, count: str = "") -> tuple[str, ...]:
        return (name, count, changed) if self._purpose == "folder" else (name, changed)

    def _count(self, folder: Path, first: int) -> None:
        """Fill in how many images or runs the listed folders hold, some at a time, as long as this folder is listed."""
        names = [item.name for item in self._items[first : first + COUNTED_AT_ONCE]]

        def show(counts: list[str]) -> None:
            if folder != self._folder:
                return
            for number, count in enumerate(counts, start=first):
                if count and self._list.exists(str(number)):
                    name, _, changed = self._list.item(str(number), "values")
                    self._list.item(str(number), values=self._row(name, changed, count))
            if first + COUNTED_AT_ONCE < len(self._items):
                self._count(folder, first + COUNTED_AT_ONCE)

        if names:
            self._background.run(lambda: [self._counted.count(folder / name) for name in names], show)

    def _select(self, number: int) -> None:
        self._list.selection_set(str(number))
        self._list.focus(str(number))
        self._list.see(str(number))

    def _select_first(self) -> str | None:
        """An arrow key begins at the first entry where none is selected."""
        if self._list.selection() or not self._items:
            return None
        self._select(0)
        return "break"

    def _chosen(self) -> Path:
        """What Choose takes."""
        typed, item = self._typed(), self._item()
        return typed / item.name if item is not None and typed == self._folder else typed

    def _show_choice(self) -> None:
        chosen = self._chosen()
        self._choice.configure(text=f"Chosen: {printable(chosen)}")
        if self._purpose == "folder":
            self._background.run(lambda: self._counted.count(chosen), lambda count: self._show_count(chosen, count))

    def _show_count(self, chosen: Path, count: str) -> None:
        if count and chosen == self._chosen():
            self._choice.configure(
                text=f"Chosen: {printable(chosen)} ({count} {self._counted.word}{'s' * (count != '1')})"
            )

    def _item(self) -> Item | None:
        selected = self._list.selection()
        return self._items[int(selected[0])] if selected else None

    def _on_select(self) -> None:
        item = self._item()
        if item is not None and not item.is_folder:
            self._name.show(item.name)
        self._show_choice()

    def _on_return(self) -> None:
        """Return or double click: open the folder or accept the file."""
        focused = str(self._dialog.window.focus_get())
        item = self._item()
        if item is not None and item.is_folder and focused == str(self._list):
            self._open_folder(self._folder / item.name)
        elif focused == str(self._list) or focused == str(self._name.line):
            self._accept()

    def _accept(self) -> None:
        if self._purpose in ("folder", "any"):
            chosen = self._chosen()
            if os.path.isdir(chosen) or (self._purpose == "any" and os.path.exists(chosen)):
                self._finish(chosen)
            else:
                kind = "folder" if self._purpose == "folder" else "file or folder"
                self._message.configure(text=f"There is no {kind} {printable(chosen)}.")
                self._path_entry.focus_set()
            return
        name = self._name.get().strip()
        if not name:
            if (item := self._item()) is not None and item.is_folder:
                self._open_folder(self._folder / item.name)
            return
        file = self._folder / name
        if os.path.isdir(file):
            self._open_folder(file)
        elif self._purpose == "open" and not os.path.isfile(file):
            self._message.configure(text=f"There is no file {printable(name)} here.")
        elif self._purpose == "save":
            file = file if file.suffix or not self._endings else file.with_name(f"{file.name}{self._endings[0]}")
            if os.path.exists(file) and self._confirmed != str(file):
                self._confirmed = str(file)
                self._message.configure(text=f"{printable(file.name)} already exists. Save again to replace it.")
            else:
                self._finish(file)
        else:
            self._finish(file)

    def _finish(self, path: Path) -> None:
        self._answer = str(path)
        self._dialog.close()

    def _up(self) -> None:
        self._open_folder(self._typed().parent)

    def _home(self) -> None:
        self._open_folder(Path.home())

    def _retype_path(self) -> None:
        self._path_entry.focus_set()
        self._path_entry.select_range(0, "end")

    def _type_ahead(self, event: tk.Event[tk.Misc]) -> None:
        """Select the next entry that starts with what is typed; a path is typed into its field."""
        if not event.char.strip() or not event.char.isprintable():  # Ctrl+A has U+0001
            return
        goes_on = event.time - self._typed_at < TYPED_TOGETHER_MS
        prefix, self._typed_at = (self._prefix if goes_on else "") + event.char, event.time
        self._prefix = event.char if prefix == 2 * event.char else prefix  # a letter again: the next entry
        if event.char in PATH_CHARACTERS:
            self._path_entry.line.delete(0, "end")
            self._path_entry.line.insert(0, prefix)
            self._path_entry.focus_set()
            self._path_entry.line.icursor("end")
            return
        selected = self._list.selection()
        start = int(selected[0]) + (len(self._prefix) == 1) if selected else 0
        for number in [*range(start, len(self._items)), *range(start)]:
            if self._items[number].name.lower().startswith(self._prefix.lower()):
                self._select(number)
                return


def _hint(purpose: Purpose, endings: Sequence[str]) -> str:
    """What can be chosen, where the list may not show it."""
    *others, last = endings or ("",)
    kinds = f"{', '.join(others)} and {last} files" if others else f"{last} files".strip()
    if purpose == "any":
        return f"Folders and {kinds} can be chosen."
    return f"Only {kinds} are listed." if purpose == "open" and endings else ""
