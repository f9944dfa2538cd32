"""Small versions of pictures, made in threads and kept on disk and in memory."""

from __future__ import annotations

import hashlib
import os
import queue
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, ImageOps

SIDE = 144
_KEPT = 1500  # in memory, about 100 KB each at most
_THREADS = 2
_DISK_FILES = 20_000


class Thumbnails:
    """Asks for pictures from the main thread and hands over finished ones there: `poll` when there is time.

    What scrolled away before its turn is not made: the last asked for come first.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = cache_folder() if folder is None else folder
        self._memory: OrderedDict[tuple[Path, int], Image.Image | None] = OrderedDict()
        self._wanted: OrderedDict[tuple[Path, int], None] = OrderedDict()
        self._busy: set[tuple[Path, int]] = set()
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[tuple[tuple[Path, int], Image.Image | None]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="thumbnails")
        self._closed = False

    def get(self, file: Path, side: int = SIDE) -> Image.Image | None:
        """The thumbnail where it is at hand; else None, and it is made."""
        key = (file, side)
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        with self._lock:
            if key in self._busy:
                return None
            is_new = key not in self._wanted
            self._wanted[key] = None
            self._wanted.move_to_end(key)
        if is_new and not self._closed:
            self._pool.submit(self._make_next)
        return None

    def has(self, file: Path, side: int = SIDE) -> bool:
        """Whether it was tried, with whatever result."""
        return (file, side) in self._memory

    def is_broken(self, file: Path, side: int = SIDE) -> bool:
        """Whether it was tried and cannot be drawn."""
        return self._memory.get((file, side), Image) is None

    def forget_wishes(self) -> None:
        """What was asked for and not begun is no longer wanted."""
        with self._lock:
            self._wanted.clear()

    def poll(self, ready: Callable[[Path], None], most: int = 50) -> int:
        """Tell `ready` of finished thumbnails; call it on the main thread. Returns how many there were."""
        for count in range(most):
            try:
                key, picture = self._ready.get_nowait()
            except queue.Empty:
                return count
            self._memory[key] = picture
            self._busy.discard(key)
            while len(self._memory) > _KEPT:
                self._memory.popitem(last=False)
            ready(key[0])
        return most

    def close(self) -> None:
        """End the threads after what they are at."""
        self._closed = True
        self.forget_wishes()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _make_next(self) -> None:
        with self._lock:
            if not self._wanted:
                return
            key, _ = self._wanted.popitem(last=True)
            self._busy.add(key)
        self._ready.put((key, self._made(*key)))

    def _made(self, file: Path, side: int) -> Image.Image | None:
        try:
            status = file.stat()
            stored = self._folder / _name(file, status.st_mtime_ns, status.st_size, side)
            if (known := _read(stored)) is not None:
                return known
            picture = _shrunk(file, side)
        except Exception:  # noqa: BLE001  # Pillow's readers raise whatever a damaged file makes them
            return None
        _store(picture, stored)
        return picture


def cache_folder() -> Path:
    """Where thumbnails are kept between starts, as each system has it."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tandem" / "thumbnails"


def tidy(folder: Path, keep: int = _DISK_FILES) -> None:
    """Remove the thumbnails that have not been used for longest; never raises OSError."""
    try:
        files = sorted(folder.glob("*/*.jpg"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[keep:]:
            path.unlink(missing_ok=True)
    except OSError:
        return


def _shrunk(file: Path, side: int) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # not by its name: Pillow would map some kinds into memory, and one that is cut short meanwhile ends the process
        with file.open("rb") as opened, Image.open(opened) as picture:
            picture.draft("RGB", (side * 2, side * 2))  # JPEG decodes straight to a smaller size
            upright = ImageOps.exif_transpose(picture)
            upright.thumbnail((side, side), Image.Resampling.LANCZOS)
            return upright.convert("RGB")


def _name(file: Path, mtime_ns: int, size: int, side: int) -> str:
    digest = hashlib.sha256(f"{file}\0{mtime_ns}\0{size}\0{side}".encode(errors="surrogateescape")).hexdigest()
    return f"{digest[:2]}/{digest[2:32]}.jpg"


def _read(stored: Path) -> Image.Image | None:
    try:
        with Image.open(stored) as picture:
            return picture.convert("RGB")
    except Exception:  # noqa: BLE001  # a torn file is made anew
        return None


def _store(picture: Image.Image, stored: Path) -> None:
    partial = stored.with_name(f"{stored.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
        picture.save(partial, format="JPEG", quality=88)
        os.replace(partial, stored)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk makes browsing slower, nothing else
