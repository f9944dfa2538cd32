"""Thumbnails, made in threads and cached on disk and in memory."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from PIL import Image

from modules.files import file_stamp
from modules.files.images import open_image, small_alpha, small_rgb
from modules.files.user_folder import user_cache_folder
from modules.files.videos import is_video, read_poster

SIDE = 144
_MEMORY_ENTRIES = 1500  # at most about 100 KB each
_THREADS = 2
_Key: TypeAlias = tuple[Path, int, bool]  # file, side, whether it shows its transparency


class Thumbnails:
    """Request thumbnails with `get` and collect finished ones with `poll`, both on the main thread.

    The latest request is served first, so images that were scrolled past do not delay those in view.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = user_cache_folder() / "thumbnails" if folder is None else folder
        self._memory: OrderedDict[_Key, Image.Image | None] = OrderedDict()
        self._pending: OrderedDict[_Key, None] = OrderedDict()
        self._busy: set[_Key] = set()
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[tuple[_Key, Image.Image | None]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="thumbnails")
        self._closed = False

    def get(self, file: Path, side: int = SIDE, *, alpha: bool = False) -> Image.Image | None:
        """The thumbnail, or that of its transparency, if it is in memory; otherwise None, and it is requested."""
        key = (file, side, alpha)
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        with self._lock:
            if key in self._busy:
                return None
            is_new = key not in self._pending
            self._pending[key] = None
            self._pending.move_to_end(key)
        if is_new and not self._closed:
            self._pool.submit(self._make_next)
        return None

    def is_done(self, file: Path, side: int = SIDE, *, alpha: bool = False) -> bool:
        """Whether the thumbnail was made or failed."""
        return (file, side, alpha) in self._memory

    def is_broken(self, file: Path, side: int = SIDE) -> bool:
        """Whether the image could not be read."""
        return self._memory.get((file, side, False), Image) is None

    def forget(self, file: Path) -> None:
        """Make those of a file anew: its content is another one."""
        for key in [key for key in self._memory if key[0] == file]:
            del self._memory[key]

    def cancel_pending(self) -> None:
        """Drop the requests that have not been started."""
        with self._lock:
            self._pending.clear()

    def poll(self, ready: Callable[[Path], None], limit: int = 50) -> int:
        """Call `ready` for each finished thumbnail, at most `limit`; returns how many. Main thread only."""
        for count in range(limit):
            try:
                key, image = self._ready.get_nowait()
            except queue.Empty:
                return count
            self._memory[key] = image
            self._busy.discard(key)
            while len(self._memory) > _MEMORY_ENTRIES:
                self._memory.popitem(last=False)
            ready(key[0])
        return limit

    def close(self) -> None:
        """End the threads after their current thumbnail."""
        self._closed = True
        self.cancel_pending()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _make_next(self) -> None:
        with self._lock:
            if not self._pending:
                return
            key, _ = self._pending.popitem(last=True)
            self._busy.add(key)
        self._ready.put((key, self._make(*key)))

    def _make(self, file: Path, side: int, alpha: bool) -> Image.Image | None:
        try:
            size, mtime_ns = file_stamp(file)
            stored = self._folder / _name(file, mtime_ns, size, side, alpha)
            if (cached := _read(stored)) is not None:
                return cached
            image = _shrunk(file, side, alpha)
        except Exception:  # noqa: BLE001  # Pillow's readers raise any exception on damaged files
            return None
        _store(image, stored)
        return image


def _shrunk(file: Path, side: int, alpha: bool) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not is_video(file):
            return small_alpha(file, side) if alpha else small_rgb(file, side)
        poster = read_poster(file)
        poster.thumbnail((side, side), Image.Resampling.LANCZOS)
        return poster


def _name(file: Path, mtime_ns: int, size: int, side: int, alpha: bool) -> str:
    key = f"{'alpha' if alpha else 'on white'}\0{file}\0{mtime_ns}\0{size}\0{side}"
    digest = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()
    return f"{digest[:2]}/{digest[2:32]}.jpg"


def _read(stored: Path) -> Image.Image | None:
    try:
        with open_image(stored) as image:
            return image.convert("RGB")
    except Exception:  # noqa: BLE001  # a torn file is made again
        return None


def _store(image: Image.Image, stored: Path) -> None:
    partial = stored.with_name(f"{stored.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
        image.save(partial, format="JPEG", quality=88)
        os.replace(partial, stored)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk only makes browsing slower
