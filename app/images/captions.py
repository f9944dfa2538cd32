"""Caption files: read, atomic write, find and replace; every change can be undone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from app.images.image_index import IndexedImage
from app.nested import value_at
from modules.config.captions import split_caption
from modules.config.file_access import mode_beside
from modules.config.sections.concept import CaptionLines
from modules.files import check_changeable, read_text, replacing

_LARGEST_FILE = 1 << 20  # bytes, as for training


@dataclass(frozen=True)
class CaptionFiles:
    """Where a concept's captions are, and what the lines of a caption file mean: its settings."""

    source: str = "auto"
    lines: CaptionLines = "random"
    extensions: tuple[str, ...] = (".txt",)

    @classmethod
    def of(cls, concept: object) -> CaptionFiles:
        """From one entry of `concepts`, which may be incomplete or invalid while it is edited."""
        lines: dict[object, CaptionLines] = {"first": "first", "whole": "whole"}
        extensions = tuple(str(value_at(concept, "caption_extension") or "").split())
        return cls(
            str(value_at(concept, "caption_source") or "auto"),
            lines.get(value_at(concept, "caption_lines"), "random"),
            tuple(each for each in extensions if each.startswith(".") and "/" not in each) or (".txt",),
        )

    def file(self, image: Path) -> Path:
        """The caption file of an image: the first that exists, else the first that is looked for."""
        return next(iter(self.files(image)), image.with_suffix(self.extensions[0]))

    def files(self, image: Path) -> list[Path]:
        """All texts beside an image that may hold its caption, in the order in which training looks for them."""
        expected = [image.with_suffix(each) for each in self.extensions]
        endings = dict.fromkeys((*self.extensions, *((".txt", ".caption") if self.source == "auto" else ())))
        others = [
            file
            for ending in endings
            for each in (ending, ending.upper())
            for file in (image.with_suffix(each), image.with_name(image.name + each))
        ]
        return [file for file in dict.fromkeys((*expected, *others)) if os.path.exists(file)]

    def caption(self, text: str) -> str:
        """What is trained on of the text of a caption file: one caption per line, or the only one."""
        return "\n".join(split_caption(text, self.lines))

    def changed(self, text: str | None, caption: str) -> str:
        """The text of a caption file with another caption; lines that are not used stay."""
        written = caption.strip()
        if self.lines == "first":
            others = (text or "").splitlines()[1:]
            written = "\n".join([" ".join(written.splitlines()), *others]).rstrip()
        return written + "\n" if written else ""


@dataclass(frozen=True)
class CaptionChange:
    """A caption file before and after a change; None means that the file does not exist."""

    file: Path
    before: str | None
    after: str | None

    def reverse(self) -> CaptionChange:
        """The change that undoes this one."""
        return CaptionChange(self.file, self.after, self.before)


def read_caption(file: Path) -> str | None:
    """The text of a caption file; None if there is no file.

    Raises OSError, or FileFault if it is no regular file, larger than 1 MiB or not UTF-8.
    """
    try:
        return read_text(file, _LARGEST_FILE).replace("\r\n", "\n")
    except FileNotFoundError:
        return None


def write_caption(image: Path, caption: str, files: CaptionFiles) -> CaptionChange:
    """Write the caption of an image and return the change. Raises OSError or FileFault, leaving the old text."""
    check_changeable(image)
    file = files.file(image)
    text = read_caption(file)
    change = CaptionChange(file, text, files.changed(text, caption))
    apply(change)
    return change


def apply(change: CaptionChange) -> None:
    """Write or delete the file as `change` says, atomically. Raises OSError."""
    if change.after is None:
        change.file.unlink(missing_ok=True)
        return
    mode = mode_beside(change.file)
    with replacing(change.file) as partial:
        partial.write_text(change.after, "utf-8")
        if mode:
            partial.chmod(mode)


Changes: TypeAlias = list[tuple[IndexedImage, CaptionChange]]


def take_back(changes: Changes) -> tuple[Changes, str]:
    """Take back what was written together, the last first; what was taken back, and why that is not all."""
    done: Changes = []
    for image, change in reversed(changes):
        try:
            apply(change.reverse())
        except OSError as error:
            return done, f"{change.file} cannot be written: {error.strerror or error}."
        done.append((image, change))
    return done, ""


@dataclass(frozen=True)
class Replacement:
    """Text to find in captions, and its replacement."""

    search: str
    replace: str
    whole_words: bool = False
    match_case: bool = False

    def pattern(self) -> re.Pattern[str]:
        """Pattern that matches `search` as plain text."""
        text = re.escape(self.search)
        bounded = rf"(?<!\w){text}(?!\w)" if self.whole_words else text
        return re.compile(bounded, re.NOFLAG if self.match_case else re.IGNORECASE)


def plan_replacement(images: Sequence[IndexedImage], replacement: Replacement) -> list[tuple[IndexedImage, str]]:
    """Images whose captions would change, with their new captions; nothing is written."""
    if not replacement.search:
        return []
    pattern = replacement.pattern()
    plans = ((image, _clean_up(pattern.sub(lambda _: replacement.replace, image.caption))) for image in images)
    return [(image, caption) for image, caption in plans if caption != image.caption]


def _clean_up(caption: str) -> str:
    """Remove the doubled commas and spaces that a removed tag leaves behind."""
    lines = []
    for line in caption.split("\n"):
        tags = [re.sub(r"  +", " ", tag).strip() for tag in line.split(",")]
        lines.append(", ".join(tag for tag in tags if tag) if "," in line else re.sub(r"  +", " ", line).strip())
    return "\n".join(lines)
