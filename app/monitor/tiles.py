"""Loads and scales sample images in a thread, latest request first, with bounded memory."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw

from modules.files import decode_json
from modules.files.images import open_image
from modules.files.videos import video_beside
from modules.run.view.event_records import SampleFile

_MAX_TILES: Final = 400
_MAX_KEPT_PIXELS: Final = 16_000_000  # of all tiles, at 3 bytes each
_MAX_PIXELS: Final = 64_000_000


@dataclass(frozen=True)
class Tile:
    """A scaled image; None if the file cannot be read."""

    image: Image.Image | None


_Key = tuple[int, int, str, int]  # counts the runs, number and file of the sample, side


class TileLoader:
    """`get`, `poll` and `cancel_pending` belong to the Tk thread."""

    def __init__(self) -> None:
        self._tiles: OrderedDict[_Key, Tile] = OrderedDict()
        self._pending: OrderedDict[_Key, None] = OrderedDict()
        self._ready: queue.SimpleQueue[tuple[_Key, Tile]] = queue.SimpleQueue()
        self._run = 0
        self._condition = threading.Condition()
        self._is_open = True
        self._thread: threading.Thread | None = None

    def get(self, sample: SampleFile, side: int) -> Tile | None:
        """The image if it is loaded; otherwise None, and it is requested."""
        key = (self._run, sample.number, sample.file, side)
        if key in self._tiles:
            self._tiles.move_to_end(key)
            return self._tiles[key]
        with self._condition:
            self._pending[key] = None
            self._pending.move_to_end(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="samples", daemon=True)
                self._thread.start()
            self._condition.notify()
        return None

    def poll(self, limit: int) -> int:
        """Collect at most `limit` finished images; returns how many."""
        for count in range(limit):
            try:
                key, tile = self._ready.get_nowait()
            except queue.Empty:
                return count
            self._tiles[key] = tile
            while len(self._tiles) > min(_MAX_TILES, max(16, _MAX_KEPT_PIXELS // key[3] ** 2)):
                self._tiles.popitem(last=False)
        return limit

    def cancel_pending(self) -> None:
        """Drop the requests that have not been started."""
        with self._condition:
            self._pending.clear()

    def clear(self) -> None:
        """Forget all images: those of another run may have the same names."""
        self.cancel_pending()
        self._tiles.clear()
        self._run += 1

    def close(self) -> None:
        """Stop the thread."""
        with self._condition:
            self._is_open = False
            self._condition.notify()

    def _work(self) -> None:
        while True:
            with self._condition:
                while self._is_open and not self._pending:
                    self._condition.wait()
                if not self._is_open:
                    return
                key, _ = self._pending.popitem()
            self._ready.put((key, Tile(read_image(Path(key[2]), key[3]))))


def read_image(file: Path, side: int) -> Image.Image | None:
    """The image scaled to fit a square of `side` pixels; None if it cannot be read."""
    try:
        with open_image(file) as image:
            if image.width * image.height > _MAX_PIXELS:
                return None
            tile = fit_image(image.convert("RGB"), side, side)
            return tile if video_beside(file) is None else _with_play_mark(tile)
    except Exception:  # noqa: BLE001  # Pillow's readers raise any exception on damaged files
        return None


def _with_play_mark(tile: Image.Image) -> Image.Image:
    """A copy with the triangle that says that it is a video, in its lower left corner."""
    marked, size = tile.copy(), max(8, min(tile.size) // 8)
    left, top = size // 2, tile.height - size - size // 2
    corners = ((left, top), (left, top + size), (left + size, top + size // 2))
    ImageDraw.Draw(marked).polygon(corners, fill="white", outline="black")
    return marked


def fit_image(image: Image.Image, width: int, height: int) -> Image.Image:
    """The image scaled to fit; enlarging does not smooth, so that single pixels stay visible."""
    scale = min(width / image.width, height / image.height)
    if scale == 1:
        return image
    resampling = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), resampling)


def read_settings(file: Path) -> Mapping[str, object]:
    """The generation settings stored in the PNG; empty if there are none."""
    try:
        with open_image(file) as image:
            found = decode_json(image.info.get("tandem", "{}"))
    except Exception:  # noqa: BLE001  # as above
        return {}
    return found if isinstance(found, dict) else {}
