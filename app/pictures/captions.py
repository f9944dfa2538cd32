"""Captions as files: read, written whole or not at all, searched and replaced; every change can be taken back."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.pictures.catalogue import Picture


@dataclass(frozen=True)
class CaptionChange:
    """One caption file before and after; None where there was, or is to be, no file."""

    file: Path
    before: str | None
    after: str | None

    def reverse(self) -> CaptionChange:
        """The change that takes this one back."""
        return CaptionChange(self.file, self.after, self.before)


def caption_file(picture: Path) -> Path:
    """Where a picture's own caption lies: the .txt beside it."""
    return picture.with_suffix(".txt")


def read_caption(picture: Path) -> str | None:
    """The text of the caption file, one caption a line; None without a file.

    Raises OSError, and UnicodeDecodeError where it is not UTF-8.
    """
    try:
        return caption_file(picture).read_text("utf-8-sig")
    except FileNotFoundError:
        return None


def write_caption(picture: Path, text: str) -> CaptionChange:
    """Write the caption of a picture, and say what changed. Raises OSError; the former text is then untouched."""
    change = CaptionChange(caption_file(picture), read_caption(picture), text.strip() + "\n" if text.strip() else "")
    apply(change)
    return change


def apply(change: CaptionChange) -> None:
    """Make the file as `change` says, whole or not at all. Raises OSError."""
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
    """What to look for in captions, and what to put in its place."""

    search: str
    replace: str
    whole_words: bool = False
    match_case: bool = False

    def pattern(self) -> re.Pattern[str]:
        """`search` is plain text, never a regular expression."""
        text = re.escape(self.search)
        bounded = rf"(?<!\w){text}(?!\w)" if self.whole_words else text
        return re.compile(bounded, re.NOFLAG if self.match_case else re.IGNORECASE)


def plan_replacement(pictures: Sequence[Picture], wanted: Replacement) -> list[tuple[Picture, str]]:
    """The pictures whose captions would change, with their new captions; nothing is written."""
    if not wanted.search:
        return []
    pattern = wanted.pattern()
    plans = ((picture, _tidy(pattern.sub(lambda _: wanted.replace, picture.caption))) for picture in pictures)
    return [(picture, caption) for picture, caption in plans if caption != picture.caption]


def _tidy(caption: str) -> str:
    """Without the doubled commas and spaces that a removed tag leaves behind."""
    lines = []
    for line in caption.split("\n"):
        tags = [re.sub(r"  +", " ", tag).strip() for tag in line.split(",")]
        lines.append(", ".join(tag for tag in tags if tag) if "," in line else re.sub(r"  +", " ", line).strip())
    return "\n".join(lines)
