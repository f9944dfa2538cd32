"""The problems of the images by file, and what can be done about them: write captions, move images to the trash."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Final

from app.images.image_index import ImageProblem
from app.widgets import theme
from app.widgets.buttons import Button, frame, handler
from app.widgets.later import later
from app.widgets.message_line import MessageLine
from app.widgets.table import table
from modules.config.sections.concept import IMAGE_SUFFIXES

_ANNOTATE: Final = (
    "Have captions, tags or masks proposed for the folder of the selected image, or the first without a caption"
)
_DUPLICATES: Final = "Near-duplicates, under Tools, shows them side by side and moves those that you mark to the trash."
_TRASH: Final = "Move the selected unreadable images to the trash (Delete), or all if none is selected; with captions"
_ROWS_AT_ONCE: Final = 1000
_KINDS: Final = {
    "broken": "unreadable",
    "caption": "no caption",
    "tiny": "too small",
    "video": "odd video",
    "duplicate": "duplicate",
}


class ProblemList(tk.Frame):
    """`on_select` is called with a problem to be shown, `on_remove` with the unreadable images to be removed."""

    def __init__(
        self,
        parent: tk.Misc,
        on_select: Callable[[ImageProblem], object],
        on_remove: Callable[[list[ImageProblem]], object],
        on_undo: Callable[[], object],
        on_annotate: Callable[[], object],
    ) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._problems: Sequence[ImageProblem] = ()
        self._hint = self._said = ""
        self._on_remove = on_remove
        foot = frame(self)
        foot.pack(side="bottom", fill="x", pady=(theme.px(8), 0))
        self._actions = frame(foot)
        self._actions.pack(side="right")
        self.undo = Button(
            self._actions, "Undo", on_undo, icon="undo", bg=theme.CARD, tooltip="Take them back from the trash."
        )
        self.trash = Button(self._actions, "", self.remove, icon="trash", bg=theme.CARD, tooltip=_TRASH)
        self.annotate = Button(self._actions, "Write captions", on_annotate, bg=theme.CARD, tooltip=_ANNOTATE)
        self._message = MessageLine(foot, bg=theme.CARD)
        self._message.pack(side="left", fill="x", expand=True)
        self.table = table(self, {"kind": ("Type", 130), "file": ("File", 300), "what": ("Problem", 480)})
        self.table.configure(selectmode="extended")
        for sequence in ("<Return>", "<Double-Button-1>"):
            self.table.bind(sequence, lambda _: self._show_focused(on_select))
        self.table.bind("<Delete>", handler(self.remove))
        self.table.bind("<Control-a>", handler(lambda: self.table.selection_set(self.table.get_children())))
        self.table.bind("<<TreeviewSelect>>", lambda _: self._selected())

    def show(self, problems: Sequence[ImageProblem], *, is_reading: bool, was_read: bool) -> None:
        """Show all problems, in folder order; while the files are being read there may be more.

        `was_read`: there are images, and every folder could be read.
        """
        known = "Press Enter or double-click to show the image." if problems else ""
        open_end = "The files are still being read…" if is_reading else ""
        self.table.say("No problems found." if was_read and not is_reading and not problems else "")
        self._hint = "  ".join(filter(None, [known, open_end]))
        if problems is not self._problems:
            self._problems = problems
            self.table.delete(*self.table.get_children())
            self._insert(problems)
        self._offer()

    def say(self, message: str) -> None:
        """Show what was done in place of the hint, until a problem is selected."""
        self._said = message
        self._offer()

    def offer_undo(self, offered: bool) -> None:
        """Show the button that takes images back from the trash, or hide it."""
        _show(self.undo, offered)

    def remove(self) -> None:
        """Ask for the removal of the selected unreadable images; of all if none is selected."""
        if images := self._removable:
            self._on_remove(images)

    def to_caption(self) -> ImageProblem | None:
        """The selected problem, else the first image without a caption; None if every image has one."""
        uncaptioned = [each for each in self._problems if each.kind == "caption"]
        return next(iter(self._selection + uncaptioned), None) if uncaptioned else None

    @property
    def _selection(self) -> list[ImageProblem]:
        return [self._problems[int(item)] for item in self.table.selection()]

    @property
    def _removable(self) -> list[ImageProblem]:
        """Files of other formats, and folders, are no images that could be broken."""
        selected = [each for each in self._selection if _is_unreadable_image(each)]
        return selected or [each for each in self._problems if _is_unreadable_image(each)]

    def _insert(self, problems: Sequence[ImageProblem], first: int = 0) -> None:
        """Insert a part of the rows, and the others a moment later: 20,000 take a fifth of a second."""
        if problems is not self._problems:
            return  # replaced meanwhile
        for number, each in enumerate(problems[first : first + _ROWS_AT_ONCE], first):
            kind = _KINDS.get(each.kind, each.kind)
            self.table.insert("", "end", iid=str(number), values=(kind, each.file.name, each.description))
        if first + _ROWS_AT_ONCE < len(problems):
            later(self, 1, lambda: self._insert(problems, first + _ROWS_AT_ONCE))

    def _selected(self) -> None:
        if self.table.selection():
            self._said = ""
        self._offer()

    def _offer(self) -> None:
        """What can be done with the selected problems."""
        has_duplicate = any(each.kind == "duplicate" for each in self._selection)
        self._message.say(self._said or (_DUPLICATES if has_duplicate else self._hint))
        images = self._removable
        all_of_them = not any(_is_unreadable_image(each) for each in self._selection) and len(images) > 1
        which = f"all {len(images):,} unreadable" if all_of_them else f"{len(images):,} unreadable"
        self.trash.configure(text=f"Move {which} to the trash…")
        _show(self.trash, bool(images))
        _show(self.annotate, self.to_caption() is not None)

    def _show_focused(self, on_select: Callable[[ImageProblem], object]) -> None:
        """Show one image, also if several are selected."""
        if selected := self.table.selection():
            focused = self.table.focus()
            on_select(self._problems[int(focused if focused in selected else selected[0])])


def _is_unreadable_image(problem: ImageProblem) -> bool:
    return problem.kind == "broken" and problem.file.suffix.lower() in IMAGE_SUFFIXES


def _show(button: Button, shown: bool) -> None:
    if shown and not button.winfo_manager():
        button.pack(side="right", padx=(8, 0))
    elif not shown:
        button.pack_forget()
