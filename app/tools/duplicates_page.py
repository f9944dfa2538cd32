"""Near-duplicates in a folder: found in a process of its own, reviewed side by side, moved to the trash."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from PIL import ImageTk

from app.images.captions import CaptionFiles
from app.images.removal import trash_images
from app.state import AppState
from app.tools.job import format_bytes
from app.tools.line_program import Answer
from app.tools.model_tasks import ModelTask, ToolField
from app.tools.program_page import ProgramPage, load_image
from app.tools.tool_form import ToolForm
from app.widgets import theme
from app.widgets.buttons import Button, Entry, Menu, Style, card, frame, text
from modules.files import expand_home
from modules.files.trash import Trashed, restore_all

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
_MOST: Final = 12  # images of a group that are shown; the others are kept
_HINT: Final = "Finds images that look alike, also in another size or format. Nothing is moved before you have seen it."


class DuplicatesPage(ProgramPage):
    """In each group the largest image is kept, until another is chosen."""

    start_label = "Find"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state)
        self.groups: list[list[dict[str, Any]]] = []
        self.at = 0
        self.marked: set[str] = set()
        self.trashed: list[list[Trashed]] = []  # by each step that can be undone
        self._unreadable = 0
        self._photos: list[ImageTk.PhotoImage] = []  # Tk itself keeps no reference
        self._shown: list[tk.Frame] = []
        self.form = ToolForm(self.head, _TASK, lambda name: None, state.typed[_TASK.name])
        self.form.pack(fill="x", expand=True)
        self.folder = cast("Entry", self.form.controls["folder"])
        self.distance = cast("Menu", self.form.controls["distance"])
        self._review = card(self.scroll.inside)
        self._build_review()
        self.say(_HINT)

    def shown(self) -> None:
        """Start with the first folder of the settings."""
        concepts = self.state.draft.data.get("concepts")
        if not self.folder.get() and isinstance(concepts, list) and concepts and isinstance(concepts[0], dict):
            self.folder.show(str(concepts[0].get("path") or ""))

    def start(self) -> None:
        """Look for them."""
        folder = expand_home(self.folder.get().strip()).absolute()
        if not self.folder.get().strip():
            self.say("Choose a folder of images.", theme.BAD)
            return
        self.groups, self.marked, self.trashed, self.at = [], set(), [], 0
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
            self.groups = groups
            unreadable = answer.get("unreadable")
            self._unreadable = unreadable if isinstance(unreadable, int) else 0

    def ended(self) -> None:
        """Show the first group."""
        self.marked = {str(image["file"]) for group in self.groups for image in group[1:_MOST]}
        self._show_group(0)

    def go(self, by: int) -> None:
        """Show the next or the previous group."""
        if self.groups:
            self._show_group((self.at + by) % len(self.groups))

    def toggle(self, file: str) -> None:
        """Keep an image, or mark it for the trash."""
        self.marked ^= {file}
        self._show_group(self.at)

    def trash_group(self) -> None:
        """Move the marked images of the group to the trash, with their captions."""
        self._trash([self.at])

    def trash_all(self) -> None:
        """Move the marked images of all groups to the trash, with their captions."""
        self._trash(range(len(self.groups)))

    def undo(self) -> None:
        """Take back what the last step moved; look again to see it."""
        if not self.trashed:
            return
        count = len(self.trashed[-1])
        try:
            restore_all(self.trashed[-1])
        except OSError as error:
            self.say(f"{error.filename or 'A file'} cannot be taken back: {error.strerror or error}.", theme.BAD)
            return
        self.trashed.pop()
        self._undo.configure(state="normal" if self.trashed else "disabled")
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

    def _show_group(self, number: int) -> None:
        for child in self._tiles.winfo_children():
            child.destroy()
        self._photos, self._shown = [], []
        self.at = number
        self._undo.configure(state="normal" if self.trashed else "disabled")
        unread = f" {_count(self._unreadable, 'file')} cannot be read." if self._unreadable else ""
        if not self.groups:
            self._title.configure(text="Nothing is left to review.")
            self._one.configure(state="disabled")
            self._all.configure(state="disabled")
            self.say(f"No near-duplicates.{unread}" if not self.trashed else f"All groups are done.{unread}")
            if self.trashed:
                self._review.pack(fill="x", padx=8, pady=(0, 12))
            return
        self._review.pack(fill="x", padx=8, pady=(0, 12))
        group = self.groups[number]
        self._title.configure(text=f"Group {number + 1} of {len(self.groups)}")
        marked = sum(image["file"] in self.marked for image in group)
        self._one.configure(state="normal" if marked else "disabled", text=f"Move {marked} to the trash")
        in_all = len(self.marked)
        self._all.configure(state="normal" if in_all else "disabled", text=f"Move all {in_all} to the trash")
        hidden = len(group) - _MOST
        kept = (
            f" {_count(hidden, 'more image')} of this group are kept; find again to see the rest." if hidden > 0 else ""
        )
        found = f"{_count(len(self.groups), 'group')} of images that look alike."
        self.say(f"{found} The marked ones go to the trash.{kept}{unread}")
        for image in group[:_MOST]:
            self._add_tile(image)
        self._arrange()

    def _add_tile(self, image: dict[str, Any]) -> None:
        file, size = str(image["file"]), image["size"]
        is_marked = file in self.marked
        tile = frame(self._tiles)
        self._shown.append(tile)
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
        for number, tile in enumerate(self._shown):
            tile.grid(row=number // columns, column=number % columns, sticky="nw", padx=theme.px(6), pady=theme.px(6))

    def _trash(self, numbers: Any) -> None:
        wanted = set(numbers)
        files = [
            str(image["file"]) for number in wanted for image in self.groups[number] if image["file"] in self.marked
        ]
        removal = trash_images((Path(file), CaptionFiles()) for file in files)
        gone = set(map(str, removal.images))
        self.marked -= gone
        self.trashed.append(removal.files)
        left = [[image for image in group if image["file"] not in gone] for group in self.groups]
        self.groups = [
            group
            for number, group in enumerate(left)
            if len(group) > 1 and (number not in wanted or bool(removal.faults))
        ]
        self._show_group(min(self.at, max(len(self.groups) - 1, 0)))
        if removal.faults:
            self.say(" ".join(removal.faults), theme.BAD)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
