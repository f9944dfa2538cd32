"""Writing files that have to be on the disk: hashed while they are written, flushed, and read back."""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from torch import Tensor

from modules.checkpoint.backup_files import FileEntry, file_sha256
from modules.checkpoint.formats.safetensors_file import lazy_tensor, ordered_names, safetensors_header, tensor_bytes
from modules.files import open_for_writing

CHUNK_BYTES: Final = 4 << 20  # the GIL is released while each is written and hashed
_SMALL_BYTES: Final = CHUNK_BYTES // 4
_SEGMENT_BYTES: Final = 64 << 20  # of a large file are flushed and read back while the next ones are written
_CAN_READ_BACK_AT_ONCE: Final = hasattr(os, "preadv")


class HashedFile:
    """A new file. The disk writes each chunk while the next ones are hashed, and what it wrote is read from it again.

    Leaving it flushes the file, and raises OSError if the disk does not return what was written.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, also for a link."""
        self._path = path
        self._descriptor = open_for_writing(path)
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._pending = bytearray()  # small pieces, which are written together
        self._reader = _Reader(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._write_pending()
                self._named(lambda: self._reader.finish(self._size))
                self._named(lambda: os.fsync(self._descriptor))
                if self._read_back() != self._sha256.hexdigest():
                    raise OSError(errno.EIO, "the disk does not return what was written", str(self._path))
        finally:
            self._reader.stop()
            os.close(self._descriptor)

    @property
    def entry(self) -> FileEntry:
        """Size and hash of what was added."""
        return FileEntry(size=self._size, sha256=self._sha256.hexdigest())

    def add(self, data: memoryview | bytes) -> None:
        """Append bytes. Raises OSError."""
        if len(data) < _SMALL_BYTES:
            self._pending += data
            if len(self._pending) >= CHUNK_BYTES:
                self._write_pending()
            return
        self._write_pending()
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            self._write(view[start : start + CHUNK_BYTES])

    def _write_pending(self) -> None:
        self._write(memoryview(bytes(self._pending)))
        self._pending.clear()

    def _write(self, chunk: memoryview) -> None:
        written = 0
        while written < len(chunk):
            written += self._named(lambda: os.write(self._descriptor, chunk[written:]))  # noqa: B023  # called at once
        if hasattr(os, "posix_fadvise") and len(chunk):  # Linux starts to write what it is to drop
            os.posix_fadvise(self._descriptor, self._size, len(chunk), os.POSIX_FADV_DONTNEED)
        self._sha256.update(chunk)
        self._size += len(chunk)
        self._reader.follow(self._size)

    def _read_back(self) -> str:
        return self._reader.sha256.hexdigest() if _CAN_READ_BACK_AT_ONCE else file_sha256(self._path)

    def _named(self, call: Callable[[], int | None]) -> int:
        """What `call` returns; an error names the file, which those of descriptors do not."""
        try:
            return call() or 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None


class _Reader:
    """Reads a file back while it grows: in a thread, once it is large."""

    def __init__(self, descriptor: int) -> None:
        self.sha256 = hashlib.sha256()
        self._descriptor = descriptor
        self._read = self._asked = 0  # bytes
        self._error: OSError | None = None
        self._ends: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def follow(self, size: int) -> None:
        """`size` bytes are written: read whole segments of them."""
        if size - self._asked >= _SEGMENT_BYTES and _CAN_READ_BACK_AT_ONCE:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="read back", daemon=True)
                self._thread.start()
            self._asked = size
            self._ends.put(size)

    def finish(self, size: int) -> None:
        """All of `size` bytes are written and read. Raises OSError."""
        self.stop()
        if self._error is not None:
            raise self._error
        if _CAN_READ_BACK_AT_ONCE:
            self._read_to(size)

    def stop(self) -> None:
        """Leave no thread that uses the descriptor."""
        if self._thread is not None:
            self._ends.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while (end := self._ends.get()) is not None:
                self._read_to(end)
        except OSError as error:
            self._error = error

    def _read_to(self, end: int) -> None:
        if os.name == "nt":
            return  # it cannot read beside the writing, and reads the whole file afterwards
        getattr(os, "fdatasync", os.fsync)(self._descriptor)
        drop_from_cache(self._descriptor, self._read, end)
        buffer = memoryview(bytearray(min(CHUNK_BYTES, end - self._read)))
        while self._read < end:
            count = os.preadv(self._descriptor, [buffer[: end - self._read]], self._read)
            if count == 0:
                raise OSError(errno.EIO, "the disk returns less than was written")
            self.sha256.update(buffer[:count])
            self._read += count


def write_bytes(path: Path, data: bytes) -> FileEntry:
    """Write a small file, flushed to the disk. Raises OSError."""
    with HashedFile(path) as file:
        file.add(data)
    return file.entry


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> FileEntry:
    """Write a safetensors file, flushed to the disk; `tensors` may be live ones if they do not change meanwhile.

    Those of another device are copied one by one. Raises OSError.
    """
    lazy = {name: lazy_tensor(tensor) for name, tensor in tensors.items()}
    names = ordered_names(lazy)
    with HashedFile(path) as file:
        file.add(safetensors_header(names, lazy, metadata or {}))
        for name in names:
            file.add(tensor_bytes(name, lazy[name]))
    return file.entry


def drop_from_cache(descriptor: int, start: int, end: int) -> None:
    """Have the next reading of flushed bytes come from the disk, where the system can do that."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
