"""Writing files that have to be on the disk: hashed while they are written, and flushed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from torch import Tensor

from modules.checkpoint.backup_files import FileEntry
from modules.checkpoint.formats.safetensors_file import lazy_tensor, ordered_names, safetensors_header, tensor_bytes
from modules.files import open_for_writing

CHUNK_BYTES: Final = 4 << 20  # the GIL is released while each is written and hashed
_SMALL_BYTES: Final = CHUNK_BYTES // 4


class HashedFile:
    """A new file. The disk starts to write each chunk at once, while the next ones are hashed; leaving flushes it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, also for a link."""
        self._path = path
        self._descriptor = open_for_writing(path)
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._pending = bytearray()  # small pieces, which are written together

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._write_pending()
                self._named(lambda: os.fsync(self._descriptor))
        finally:
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

    def _named(self, call: Callable[[], int | None]) -> int:
        """What `call` returns; an error names the file, which those of descriptors do not."""
        try:
            return call() or 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None


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


def drop_from_cache(path: Path) -> None:
    """Have the next reading of a flushed file come from the disk, where the system can do that."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
