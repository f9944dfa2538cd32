"""Images moved to the trash with their captions, and taken back."""

from __future__ import annotations

import errno
import os
import tkinter as tk
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.background import Background
from app.images.captions import CaptionFiles
from app.shell.ask import Choice, ask
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.files import check_changeable
from modules.files.trash import Trashed, move_to_trash, restore_all

_NAMED: Final = 6  # images that the question names
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass
class Removal:
    """What was moved to the trash: images and their captions; and why others stayed."""

    files: list[Trashed] = field(default_factory=list)
    images: set[Path] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)  # one for each reason


def trash_images(images: Iterable[tuple[Path, CaptionFiles]]) -> Removal:
    """Move images to the trash, each with its caption files unless another image of the same name shares them.

    Folders stay, and what is gone already counts as moved.
    """
    removal, folders = Removal(), _Folders()
    for image, captions in images:
        if image.is_dir() and not image.is_symlink():
            continue
        try:
            check_changeable(image)
            if os.path.lexists(image):
                removal.files.append(move_to_trash(image))
            removal.images.add(image)
            for file in folders.captions_without(image, captions):
                removal.files.append(move_to_trash(file))
        except OSError as error:
            if (fault := _explain(error, image)) not in removal.faults:
                removal.faults.append(fault)
    return removal


class ImageRemoval:
    """Asks, moves and takes back. `say` shows a message; `moved` gets the images that are gone, `restored` nothing."""

    def __init__(
        self,
        owner: tk.Misc,
        background: Background,
        say: Callable[[str], object],
        moved: Callable[[set[Path]], object],
        restored: Callable[[], object],
        steps: list[list[Trashed]],
    ) -> None:
        """`steps` is what each deletion has moved; it outlives this."""
        self._owner, self._background, self._say = owner, background, say
        self._moved, self._restored = moved, restored
        self._steps = steps

    @property
    def can_undo(self) -> bool:
        """Whether something can be taken back."""
        return bool(self._steps)

    def ask(self, images: Sequence[tuple[Path, CaptionFiles]]) -> None:
        """Ask, then move these images to the trash."""

        def chosen(answer: str) -> None:
            if answer:
                self._background.run(lambda: trash_images(images), self._done)

        names = [image.name for image, _ in images]
        title = names[0] if len(names) == 1 else f"{len(names):,} images"
        ask(
            self._owner,
            f"Move {title} to the trash?",
            f"{', '.join(names[:_NAMED])}{' …' if len(names) > _NAMED else ''}, with captions. "
            f"“Undo” takes {_them(len(names))} back.",
            (Choice("", "Cancel", "accent"), Choice("delete", "Move to the trash", "danger")),
            chosen,
        )

    def undo(self) -> None:
        """Take back what the last deletion moved."""
        if not self._steps:
            return
        try:
            restore_all(self._steps[-1])
        except OSError as error:
            place = error.filename or self._steps[-1][-1].original
            self._say(f"{place} cannot be taken back: {error.strerror or error}.")
        else:
            self._steps.pop()
            self._say("Back where they were.")
        self._restored()

    def _done(self, removal: Removal) -> None:
        said = []
        if removal.files:
            self._steps.append(removal.files)
            count = len(removal.images)
            moved = f"{count:,} images" if count > 1 else removal.files[0].original.name
            said.append(f"Moved {moved} to {removal.files[0].place.parent}. “Undo” takes {_them(count)} back.")
        self._say(" ".join([*said, *removal.faults]) or "They are gone already.")
        self._moved(removal.images)


class _Folders:
    """Which images share a name without its ending, read once for each folder."""

    def __init__(self) -> None:
        self._names: dict[Path, dict[str, set[str]]] = {}

    def captions_without(self, image: Path, captions: CaptionFiles) -> list[Path]:
        """The caption files that nobody needs without this image, which is gone."""
        if image.parent not in self._names:
            self._names[image.parent] = _images_by_stem(image.parent)
        others = self._names[image.parent][image.stem]
        others.discard(image.name)
        return [] if others else [file for file in captions.files(image) if file.is_file()]


def _images_by_stem(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name in os.listdir(folder):
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in IMAGE_SUFFIXES:
            found[stem].add(name)
    return found


def _explain(error: OSError, image: Path) -> str:
    if error.errno in _READ_ONLY:
        return f"{image.parent} is read-only: nothing can be moved out of it."
    return f"{error.filename or image} cannot be moved: {error.strerror or error}."


def _them(count: int) -> str:
    return "them" if count > 1 else "it"
