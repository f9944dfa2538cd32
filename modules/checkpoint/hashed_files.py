"""Writing files that have to be on the disk: hashed while they are written, flushed, and read back."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from torch import Tensor

from modules.checkpoint.tensor_sink import add_tensors
from modules.checkpoint.verified_write import BLOCK_BYTES, CAN_READ_WHILE_WRITING, CHUNK_BYTES, VerifiedWriter
from modules.files import open_for_writing
from modules.run.folder.backup_manifest import FileEntry, file_sha256


class HashedFile:
    """A new file, which is hashed while it is written. Leaving it flushes it, and raises OSError if the disk does not
    return what was written.
    """

    def __init__(self, path: Path, size: int = BLOCK_BYTES) -> None:
        """`size`: bytes to expect, if they are few. Raises OSError, also for a link, or if there is no memory."""
        self._path = path
        self._descriptor = open_for_writing(path)
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._writer = VerifiedWriter(self._descriptor)
        try:
            self._block = self._writer.block(min(size, BLOCK_BYTES))
        except BaseException as error:
            os.close(self._descriptor)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, str(path)) from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._named(lambda: self._writer.finish(self._block))
                self._named(lambda: os.fsync(self._descriptor))
                if not CAN_READ_WHILE_WRITING and file_sha256(self._path) != self._sha256.hexdigest():
                    raise OSError(errno.EIO, "the disk does not return what was written", str(self._path))
        finally:
            self._writer.stop()
            os.close(self._descriptor)

    @property
    def entry(self) -> FileEntry:
        """Size and hash of what was added."""
        return FileEntry(size=self._size, sha256=self._sha256.hexdigest())

    def add(self, data: memoryview | bytes) -> None:
        """Append bytes. Raises OSError."""
        view = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        while len(view):
            if not self._block.room:
                self._named(lambda: self._writer.put(self._block))
                self._named(self._next_block)
            chunk = view[: min(CHUNK_BYTES, self._block.room)]
            self._sha256.update(chunk.data)
            self._block.fill(chunk)
            self._size += len(chunk)
            view = view[len(chunk) :]

    def _next_block(self) -> None:
        self._block = self._writer.block(BLOCK_BYTES)
        self._block.start = self._size

    def _named(self, call: Callable[[], None]) -> None:
        """An error names the file, which those of descriptors do not."""
        try:
            call()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None


def write_bytes(path: Path, data: bytes) -> FileEntry:
    """Write a small file, flushed to the disk. Raises OSError."""
    with HashedFile(path, len(data)) as file:
        file.add(data)
    return file.entry


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> FileEntry:
    """Write a safetensors file, flushed to the disk; `tensors` may be live ones if they do not change meanwhile.

    Those of another device are copied one by one. Raises OSError.
    """
    with HashedFile(path) as file:
        add_tensors(file, tensors, metadata or {})
    return file.entry
