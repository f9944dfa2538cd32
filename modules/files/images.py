"""Opening image files that anybody may have made: known formats only, and no more memory at once than is sensible.

Pillow guesses the format from the content and has readers that start other programs (Ghostscript for EPS), so that a
picture's name says nothing; and a file of a megabyte can stand for gigabytes of pixels.
"""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from PIL import Image

from modules.files.reading import open_regular

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND"
_BYTES_PER_PIXEL = 8  # decoded and converted: Pillow keeps 4 bytes a pixel for RGB, too
_MEMORY_LIMIT = 1 << 30  # bytes of decoded images at once in a process


class MemoryBudget:
    """Lets threads work at once while the bytes they need add up to less than `limit`; more than that works alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, wanted: int) -> Iterator[None]:
        """Wait until `wanted` bytes, or the whole limit if they are more, are free; they are for the time inside."""
        share = min(wanted, self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._used + share <= self._limit)
            self._used += share
        try:
            yield
        finally:
            with self._changed:
                self._used -= share
                self._changed.notify_all()


_budget = MemoryBudget(_MEMORY_LIMIT)


@contextmanager
def open_image(source: str | Path | bytes) -> Iterator[Image.Image]:
    """The image in a regular file or in bytes, not decoded yet; raises what Pillow raises, OSError or FileFault.

    The file is open only inside: given a name, Pillow may map it into memory, where truncating it kills the process.
    """
    with (
        io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as opened,
        Image.open(opened, formats=IMAGE_FORMATS) as image,
    ):
        yield image


def memory_to_decode(image: Image.Image) -> AbstractContextManager[None]:
    """A context in which this image may be decoded: threads that decode large ones wait for each other."""
    return _budget.reserve(image.width * image.height * _BYTES_PER_PIXEL)


def check_png(data: bytes) -> None:
    """Raise ValueError if `data` is a PNG with a wrong checksum or without its end, which Pillow accepts.

    Each chunk is length, type, content and a CRC-32 over type and content (PNG specification, 5.3).
    """
    if not data.startswith(_PNG_SIGNATURE):
        return
    at = len(_PNG_SIGNATURE)
    view = memoryview(data)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            break
        if zlib.crc32(view[at + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            raise ValueError(f"the checksum of its {_printable_type(data[at + 4 : at + 8])} data does not match")
        if data[at + 4 : at + 8] == _PNG_END:
            return
        at = end + 4
    raise ValueError("its end is missing")


def is_truncated_png(path: str | Path) -> bool:
    """Whether it begins as a PNG and does not end as one; reads only the two ends. Raises OSError or FileFault."""
    with open_regular(path) as file:
        if file.read(len(_PNG_SIGNATURE)) != _PNG_SIGNATURE:
            return False
        size = file.seek(0, io.SEEK_END)
        # some programs append data of their own after the end
        file.seek(max(0, size - (64 << 10)))
        return _PNG_END not in file.read()


def _printable_type(chunk_type: bytes) -> str:
    return chunk_type.decode("ascii", "replace") if chunk_type.isalpha() else "unknown"
