"""What a long indexing has found so far, kept beside the index, so that one that is killed goes on where it was."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Self, TypeAlias

from pydantic import AfterValidator, Field

from modules.config.captions import CaptionPlace, CaptionState
from modules.files import FileFault, open_for_writing, open_regular, validate_record

NAME: Final = "index.partial"
_FLUSH_S: Final = 5.0  # what is found within this time may be lost
_LINE_BYTES: Final = 64 << 20

Size: TypeAlias = tuple[int, int]  # width, height
Stamp: TypeAlias = tuple[int, int]  # size in bytes, mtime in ns
Caption: TypeAlias = tuple[Sequence[str], CaptionState, CaptionPlace]
_Side: TypeAlias = Annotated[int, Field(gt=0, lt=1 << 31)]


def _encodable(text: str) -> str:
    text.encode()  # raises ValueError for a surrogate, which a foreign file may have
    return text


_Text: TypeAlias = Annotated[str, AfterValidator(_encodable)]


@dataclass
class Line:
    """What was found in some seconds; JSON in the file, so the names are part of the format."""

    sizes: list[tuple[str, int, int, _Side, _Side]] = field(default_factory=list)  # path, stamp, size
    origin: str = ""  # of the captions
    captions: list[tuple[str, int, int, list[_Text], CaptionState, CaptionPlace]] = field(
        default_factory=list
    )  # image, stamp, Caption


class Journal:
    """What was found of files, by absolute path, size and mtime; `NAME` in the cache folder has a line of JSON for each
    few seconds of it, and none if it takes less. Faults are not kept: they are looked for again.

    The file is removed once all is done, and kept if an error or a kill comes before. Without `folder` nothing is
    written or known, and nothing is written where that cannot be. Threads may use it together.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / NAME
        self._sizes: dict[tuple[str, int, int], Size] = {}
        self._captions: dict[tuple[str, str, int, int], Caption] = {}
        self._new, self._lock = Line(), threading.Lock()
        self._flushed_at = time.monotonic()
        for line in () if self._file is None else _lines(self._file):
            self._sizes |= {tuple(key): (width, height) for *key, width, height in line.sizes}  # type: ignore[misc]
            self._captions |= {
                (line.origin, *key): (texts, state, place)  # type: ignore[misc]
                for *key, texts, state, place in line.captions
            }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        if error is not None:
            with self._lock:
                self._flush()
            return
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def size(self, path: str, stamp: Stamp) -> Size | None:
        """Width and height of an image file, if they are known."""
        return self._sizes.get((path, *stamp))

    def add_size(self, path: str, stamp: Stamp, size: Size) -> None:
        """Keep it."""
        if self._file is not None and (path, *stamp) not in self._sizes:
            with self._lock:
                self._new.sizes.append((path, *stamp, *size))
                self._flush_in_time()

    def caption(self, origin: str, image: str, stamp: Stamp) -> Caption | None:
        """The captions of an image, if they are known; the stamp is that of its caption file."""
        return self._captions.get((origin, image, *stamp))

    def add_caption(self, origin: str, image: str, stamp: Stamp, found: Caption) -> None:
        """Keep them; `origin` is `Captions.origin`."""
        if self._file is None or (origin, image, *stamp) in self._captions:
            return
        with self._lock:
            if origin != self._new.origin:
                self._flush()
                self._new.origin = origin
            self._new.captions.append((image, *stamp, list(found[0]), found[1], found[2]))
            self._flush_in_time()

    def _flush_in_time(self) -> None:
        if time.monotonic() - self._flushed_at >= _FLUSH_S:
            self._flush()

    def _flush(self) -> None:
        new, self._new = self._new, Line(origin=self._new.origin)
        self._flushed_at = time.monotonic()
        if self._file is None or not (new.sizes or new.captions):
            return
        text = json.dumps(vars(new), separators=(",", ":")).encode()
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_for_writing(self._file, append=True), "ab", buffering=0) as file:
                file.write(b"\n" + text + b"\n")  # in one piece; a torn line before it must not swallow it


def _lines(file: Path) -> Iterator[Line]:
    """The lines of a journal, without those that are none: a cache folder may come from somebody else."""
    with suppress(OSError, FileFault), open_regular(file) as opened:
        while text := opened.readline(_LINE_BYTES):
            with suppress(ValueError, RecursionError):
                line = validate_record(Line, json.loads(text))
                yield line
