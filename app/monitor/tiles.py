"""Sample pictures, read and scaled in a thread; the newest wish comes first, and memory is bounded."""

from __future__ import annotations

import json
import queue
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image

from app.run_facts import SampleFile

_KEPT: Final = 400  # 100 KiB each at 176 pixels
_LARGEST_PIXELS: Final = 64_000_000


@dataclass(frozen=True)
class Tile:
    """A scaled picture; None where the file cannot be read."""

    picture: Image.Image | None


class Tiles:
    """Asked and emptied on the Tk thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, str, int], Tile] = OrderedDict()
        self._wanted: OrderedDict[tuple[int, str, int], None] = OrderedDict()
        self._ready: queue.SimpleQueue[tuple[tuple[int, str, int], Tile]] = queue.SimpleQueue()
        self._condition = threading.Condition()
        self._is_open = True
        self._thread: threading.Thread | None = None

    def get(self, sample: SampleFile, side: int) -> Tile | None:
        """The picture, if it is at hand; else it is made, and None comes back."""
        key = (sample.number, sample.file, side)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        with self._condition:
            self._wanted[key] = None
            self._wanted.move_to_end(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="samples", daemon=True)
                self._thread.start()
            self._condition.notify()
        return None

    def take(self, most: int) -> int:
        """Take over pictures that are ready; returns how many."""
        for count in range(most):
            try:
                key, tile = self._ready.get_nowait()
            except queue.Empty:
                return count
            self._kept[key] = tile
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return most

    def forget_wishes(self) -> None:
        """What was asked for is out of sight."""
        with self._condition:
            self._wanted.clear()

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._is_open = False
            self._condition.notify()

    def _work(self) -> None:
        while True:
            with self._condition:
                while self._is_open and not self._wanted:
                    self._condition.wait()
                if not self._is_open:
                    return
                key, _ = self._wanted.popitem()
            self._ready.put((key, Tile(read_picture(Path(key[1]), key[2]))))


def read_picture(file: Path, side: int) -> Image.Image | None:
    """The picture fitted into a square; None where it cannot be read, for whatever reason."""
    try:
        with file.open("rb") as opened, Image.open(opened) as picture:  # by its name it might be mapped into memory
            if picture.width * picture.height > _LARGEST_PIXELS:
                return None
            return fitted(picture.convert("RGB"), side, side)
    except Exception:  # noqa: BLE001  # Pillow's readers raise whatever a damaged file makes them
        return None


def fitted(picture: Image.Image, width: int, height: int) -> Image.Image:
    """As large as fits; small pictures are enlarged without smoothing, so that one sees the pixels as they are."""
    scale = min(width / picture.width, height / picture.height)
    if scale == 1:
        return picture
    how = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), how)


def read_settings(file: Path) -> Mapping[str, object]:
    """What the PNG says about itself; empty where it says nothing."""
    try:
        with Image.open(file) as picture:
            found = json.loads(picture.info.get("tandem", "{}"))
    except Exception:  # noqa: BLE001  # as above
        return {}
    return found if isinstance(found, dict) else {}
