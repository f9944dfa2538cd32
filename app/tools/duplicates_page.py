"""Near-duplicates in a folder: found in a process of its own, reviewed side by side, moved to the trash."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from PIL import ImageTk

from app.state import AppState
from app.tools.duplicates import MOST, Duplicates, Image
from app.tools.line_program import Answer
from app.tools.model_tasks import ModelTask, ToolField
from app.tools.program_page import ProgramPage, load_image
from app.tools.tool_form import ToolForm
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Menu, Style, card, frame, text
from modules.files.addresses import concept_folder
from modules.run.format_progress import format_bytes

MODULE: Final = "modules.data.index.near_duplicates"
DISTANCES: Final[Mapping[str, str]] = {"0": "The same", "4": "Very similar", "10": "Similar"}
DETAILS: Final = {
    "0": "Other sizes and formats of one image.",
    "4": "Also slightly edited or cropped ones.",
    "10": "Also images of one series; look at them closely.",
}
_FOLDER: Final = "Its subfolders are searched, too."
_FIELDS: Final = (
    ToolField("folder", "Folder of images", "folder", _FOLDER),
    ToolField("distance", "Similarity", "choice", "How alike two images must look.", "4", DISTANCES, details=DETAILS),
)
_TASK: Final = ModelTask("duplicates", "Near-duplicates", "", _FIELDS)
_SIDE: Final = 250  # unscaled pixels of an image
_HINT: Final = "Finds images that look alike, also in another size or format. Nothing is moved before you have seen it."


class DuplicatesPage(ProgramPage):
    """One group is in sight, side by side."""

    name = _TASK.name
    start_label = "Find"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state)
        self._photos: list[ImageTk.PhotoImage] = []  # Tk itself keeps no reference
        self.tiles: list[tk.Frame] = []
        self.form = ToolForm(self.head, _TASK, lambda name: None, state.typed[_TASK.name])
        self.form.pack(fill="x", expand=True)
        self.folder = cast("Entry", self.form.controls["folder"])
        self.distance = cast("Menu", self.form.controls["distance"])
        self._review = card(self.scroll.inside)
        self._build_review()
        self.say(_HINT)
        self.follow()

    @property
    def found(self) -> Duplicates:
        """What the last search has found."""
        if self.state.duplicates is None:
            self.state.duplicates = Duplicates()
        return self.state.duplicates

    def shown(self) -> None:
        """Start with the first folder of the settings."""
        concepts = self.state.draft.data.get("concepts")
        if not self.folder.get() and isinstance(concepts, list) and concepts and isinstance(concepts[0], dict):
            self.folder.show(str(concepts[0].get("path") or ""))

    def start(self) -> None:
        """Look for them."""
        folder = Path(concept_folder(self.folder.get().strip()))
        if not self.folder.get().strip():
            self.say("Choose a folder of images.", theme.BAD)
            return
        self.state.duplicates = None
        self._review.pack_forget()
        self.say("Reading the images…")
        self.run(MODULE, [str(folder), self.distance.value()])

    def answer(self, answer: Answer) -> None:
        """Show progress, or take the groups."""
        done, total, groups = answer.get("done"), answer.get("total"), answer.get("groups")
        if isinstance(done, int) and isinstance(total, int) and total:
            self.progress.show(done / total, busy=True)
            self.say(f"{done:,} of {total:,} images read")
        if isinstance(groups, list):
            unreadable = answer.get("unreadable")
            self.found.take(groups, unreadable if isinstance(unreadable, int) else 0)

    def ended(self) -> None:
        """Show the first group, or the one that was in sight."""
        self._show_group()

    def go(self, by: int) -> None:
        """Show the next or the previous group."""
        if groups := self.found.groups:
            self.found.at = (self.found.at + by) % len(groups)
            self._show_group()

    def toggle(self, file: str) -> None:
        """Keep an image, or mark it for the trash."""
        self.found.marked ^= {file}
        self._show_group()

    def trash_group(self) -> None:
        """Move the marked images of the group to the trash, with their captions."""
        self._trash([self.found.at])

    def trash_all(self) -> None:
        """Move the marked images of all groups to the trash, with their captions."""
        self._trash(range(len(self.found.groups)))

    def undo(self) -> None:
        """Take back what the last step moved; look again to see it."""
        if not self.found.trashed:
            return
        try:
            count = self.found.undo()
        except OSError as error:
            self.say(f"{error.filename or 'A file'} cannot be taken back: {error.strerror or error}.", theme.BAD)
            return
        self._undo.configure(state="normal" if self.found.trashed else "disabled")
        self.say(f"Back: {_count(count, 'file')}. Find shows the groups again.")

    def _build_review(self) -> None:
        row = frame(self._review)
        row.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), theme.px(8)))
        self._title = text(row, "", "heading")
        self._title.pack(side="left")
        for icon, by, tooltip in (("left", -1, "Previous group"), ("right", 1, "Next group")):
            button = Button(row, icon=icon, bg=theme.CARD, tooltip=tooltip, command=partial(self.go, by))
            button.pack(side="left", padx=(8, 0))
        self._undo = Button(row, "Undo", self.undo, icon="undo", bg=theme.CARD)
        self._undo.pack(side="right")
        self._all = Button(row, "All groups", self.trash_all, icon="trash", bg=theme.CARD)
        self._all.pack(side="right", padx=(0, 8))
        self._one = Button(row, "This group", self.trash_group, icon="trash", style="danger", bg=theme.CARD)
        self._one.pack(side="right", padx=(0, 8))
        self._tiles = frame(self._review)
        self._tiles.pack(fill="x", padx=theme.px(10), pady=(0, theme.px(12)))
        self._tiles.bind("<Configure>", lambda event: self._arrange())

    def _show_group(self) -> None:
        found = self.found
        for child in self._tiles.winfo_children():
            child.destroy()
        self._photos, self.tiles = [], []
        self._undo.configure(state="normal" if found.trashed else "disabled")
        unread = f" {_count(found.unreadable, 'file')} cannot be read." if found.unreadable else ""
        if not found.groups:
            self._title.configure(text="Nothing is left to review.")
            self._one.configure(state="disabled")
            self._all.configure(state="disabled")
            self.say(f"No near-duplicates.{unread}" if not found.trashed else f"All groups are done.{unread}")
            if found.trashed:
                self._review.pack(fill="x", padx=8, pady=(0, 12))
            return
        self._review.pack(fill="x", padx=8, pady=(0, 12))
        group = found.groups[found.at]
        self._title.configure(text=f"Group {found.at + 1} of {len(found.groups)}")
        marked = sum(image["file"] in found.marked for image in group)
        self._one.configure(state="normal" if marked else "disabled", text=f"Move {marked} to the trash")
        in_all = len(found.marked)
        self._all.configure(state="normal" if in_all else "disabled", text=f"Move all {in_all} to the trash")
        hidden = len(group) - MOST
        kept = (
            f" {_count(hidden, 'more image')} of this group are kept; find again to see the rest." if hidden > 0 else ""
        )
        alike = f"{_count(len(found.groups), 'group')} of images that look alike."
        self.say(f"{alike} The buttons move the marked ones to the trash.{kept}{unread}")
        for image in group[:MOST]:
            self._add_tile(image)
        self._arrange()

    def _add_tile(self, image: Image) -> None:
        file, size = str(image["file"]), image["size"]
        is_marked = file in self.found.marked
        tile = frame(self._tiles)
        self.tiles.append(tile)
        picture = tk.Label(tile, borderwidth=0, highlightthickness=2, width=1, height=1)
        theme.paint(picture, bg=theme.CARD, highlightbackground=theme.BAD if is_marked else theme.GOOD)
        picture.pack(anchor="w")
        text(tile, Path(file).name, wrap=_SIDE).pack(anchor="w", pady=(theme.px(4), 0))
        text(tile, f"{size[0]} × {size[1]}, {format_bytes(int(image['bytes']))}", "small", colour=theme.MUTED).pack(
            anchor="w"
        )
        label = "To the trash" if is_marked else "Keep"
        style: Style = "danger" if is_marked else "plain"
        button = Button(
            tile, label, partial(self.toggle, file), icon="trash" if is_marked else "check", style=style, bg=theme.CARD
        )
        button.pack(anchor="w", pady=(6, 0))
        self.state.background.run(partial(load_image, file, theme.px(_SIDE)), partial(self._show_image, picture))

    def _show_image(self, picture: tk.Label, image: Any) -> None:
        if picture.winfo_exists():
            photo = ImageTk.PhotoImage(image, master=self)
            self._photos.append(photo)
            picture.configure(image=str(photo), width=photo.width(), height=photo.height())

    def _arrange(self) -> None:
        columns = max(1, self._tiles.winfo_width() // theme.px(_SIDE + 16))
        for number, tile in enumerate(self.tiles):
            tile.grid(row=number // columns, column=number % columns, sticky="nw", padx=theme.px(6), pady=theme.px(6))

    def _trash(self, numbers: Collection[int]) -> None:
        faults = self.found.to_trash(numbers)
        self._show_group()
        if faults:
            self.say(" ".join(faults), theme.BAD)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
