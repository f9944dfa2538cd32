"""The groups of images that look alike, which of them go to the trash, and which have gone there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.images.captions import CaptionFiles
from app.images.removal import trash_images
from modules.files.trash import Trashed, restore_all

MOST: Final = 12  # images of a group that are shown; the others are kept

Image = dict[str, Any]  # file, size and bytes, as the search says them


@dataclass
class Duplicates:
    """The result of one search and its review; outlives the page, which a change of scale builds anew.

    In each group the largest image is kept, until another is chosen.
    """

    groups: list[list[Image]] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    at: int = 0  # the group in sight
    trashed: list[list[Trashed]] = field(default_factory=list)  # by each step that can be undone
    unreadable: int = 0
    is_found: bool = False

    def take(self, groups: list[list[Image]], unreadable: int) -> None:
        """Take what the search has found, once."""
        if self.is_found:
            return
        self.groups, self.unreadable, self.is_found = groups, unreadable, True
        self.marked = {str(image["file"]) for group in groups for image in group[1:MOST]}

    def to_trash(self, numbers: Collection[int]) -> list[str]:
        """Move the marked images of these groups to the trash, with their captions; why some stay."""
        files = [
            str(image["file"]) for number in numbers for image in self.groups[number] if image["file"] in self.marked
        ]
        removal = trash_images((Path(file), CaptionFiles()) for file in files)
        gone = set(map(str, removal.images))
        self.marked -= gone
        self.trashed.append(removal.files)
        left = [[image for image in group if image["file"] not in gone] for group in self.groups]
        self.groups = [
            group
            for number, group in enumerate(left)
            if len(group) > 1 and (number not in numbers or bool(removal.faults))
        ]
        self.at = min(self.at, max(len(self.groups) - 1, 0))
        return list(removal.faults)

    def undo(self) -> int:
        """Take back what the last step has moved; the number of files. Raises OSError."""
        count = len(self.trashed[-1])
        restore_all(self.trashed[-1])
        self.trashed.pop()
        return count
