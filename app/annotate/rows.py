"""What a model proposes for an image, what the image has now, and what the user has decided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.images.captions import read_caption
from modules.annotation import Task
from modules.files import FileFault, printable

TITLES: Final[dict[Task, str]] = {"caption": "Captions", "tag": "Tags", "mask": "Masks"}
NOUNS: Final[dict[Task, tuple[str, str]]] = {
    "caption": ("caption", "captions"),
    "tag": ("caption", "captions"),  # tags are written as captions
    "mask": ("mask", "masks"),
}


@dataclass(slots=True)
class Row:
    """One image: a proposed text or mask, or in `problem` why there is none, or why it was not written.

    `present` is the caption that the image has, None before it was read; `present_mask` its mask.
    """

    image: Path
    relative: str
    text: str = ""
    mask: Path | None = None
    problem: str = ""
    is_accepted: bool = True
    present: str | None = None
    present_mask: Path | None = None

    @property
    def has_proposal(self) -> bool:
        """Whether there is something to accept."""
        return bool(self.text) or self.mask is not None

    def read_present(self, ending: str) -> None:
        """Look once at what the image has: a file with its name and this ending."""
        if self.present is not None:
            return
        file = self.image.with_name(self.image.stem + ending)
        self.present = ""
        if self.mask is not None:
            self.present_mask = file if file.is_file() else None
            return
        try:
            self.present = (read_caption(file) or "").strip()
        except (OSError, FileFault) as error:
            self.present = f"({printable(file.name)} cannot be read: {error})"


def count(number: int, task: Task) -> str:
    """Such as "1 caption" or "1,200 masks"."""
    return f"{number:,} {NOUNS[task][number != 1]}"
