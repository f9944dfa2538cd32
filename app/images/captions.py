"""Caption files: read, atomic write, find and replace; every change can be undone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.images.image_index import IndexedImage


@dataclass(frozen=True)
class CaptionChange:
    """A caption file before and after a change; None means that the file does not exist."""

    file: Path
    before: str | None
    after: str | None

    def reverse(self) -> CaptionChange:
        """The change that undoes this one."""
        return CaptionChange(self.file, self.after, self.before)


def caption_file(image: Path) -> Path:
    """The .txt file next to an image."""
    return image.with_suffix(".txt")


def read_caption(image: Path) -> str | None:
    """The text of the caption file, one caption per line; None if there is no file.

    Raises OSError, or UnicodeDecodeError if the file is not UTF-8.
    """
    try:
        return caption_file(image).read_text("utf-8-sig")
    except FileNotFoundError:
        return None


def write_caption(image: Path, text: str) -> CaptionChange:
    """Write the caption of an image and return the change. Raises OSError, leaving the old text in place."""
    change = CaptionChange(caption_file(image), read_caption(image), text.strip() + "\n" if text.strip() else "")
    apply(change)
    return change


def apply(change: CaptionChange) -> None:
    """Write or delete the file as `change` says, atomically. Raises OSError."""
    if change.after is None:
        change.file.unlink(missing_ok=True)
        return
    partial = change.file.with_name(f".{change.file.name}.partial")
    try:
        partial.write_text(change.after, "utf-8")
        os.replace(partial, change.file)
    finally:
        partial.unlink(missing_ok=True)


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
