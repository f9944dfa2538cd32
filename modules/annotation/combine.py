"""The content of a caption file or mask with what is proposed, in place of the former content or added to it."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, ImageChops

from modules.annotation.proposals import Task, clean_text
from modules.files import FileFault
from modules.files.images import memory_to_decode, open_image

SEPARATOR = ", "


def combined_caption(text: str, former: bytes | None, task: Task) -> bytes:
    """UTF-8 text of a caption file. Tags are added to each line of `former`, a caption is another line.

    Raises FileFault if the former content is no text.
    """
    new = clean_text(text)
    if former is None or not former.strip():
        return f"{new}\n".encode() if new else b""
    try:
        lines = former.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FileFault(f"has a caption file that is not UTF-8 text (byte {error.start})") from None
    if task == "tag":
        lines = [added_tags(line, new) if line.strip() else line for line in lines]
    elif new and new not in (line.strip() for line in lines):
        lines.append(new)
    return ("\n".join(lines) + "\n").encode()


def added_tags(line: str, tags: str) -> str:
    """A line of tags with those of `tags` that it does not have yet."""
    known = {tag.strip().casefold() for tag in line.split(",")}
    missing = [tag.strip() for tag in tags.split(",") if tag.strip() and tag.strip().casefold() not in known]
    return SEPARATOR.join([line.strip().rstrip(","), *missing])


def combined_mask(data: bytes, former: bytes | None, image: Path) -> bytes:
    """A PNG, written anew: the proposed mask, or what is white in it or in the former one.

    Raises FileFault if one is no image, or if the proposed one does not have the size of `image`, upright.
    """
    try:
        with open_image(data) as mask, memory_to_decode(mask):
            proposed = mask.convert("L")
        with open_image(image) as opened:
            size = opened.size
    except Exception as error:  # noqa: BLE001 - Pillow raises errors of any type for damaged files
        raise FileFault(f"has a proposed mask that cannot be read ({type(error).__name__})") from None
    if proposed.size not in (size, size[::-1]):
        raise FileFault(f"is {size[0]}x{size[1]} now, and its proposed mask {proposed.width}x{proposed.height}")
    if former is None:
        return png(proposed)
    try:
        with open_image(former) as mask, memory_to_decode(mask):
            present = mask.convert("L").resize(proposed.size)
    except Exception as error:  # noqa: BLE001 - as above
        raise FileFault(f"has a mask that cannot be read ({type(error).__name__})") from None
    return png(ImageChops.lighter(proposed, present))


def png(image: Image.Image) -> bytes:
    """The image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=False)
    return buffer.getvalue()
