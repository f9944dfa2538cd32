"""Cached examples on disk: safetensors shards, written atomically, and a manifest of what each holds."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.config import ConfigError, TandemError
from modules.data.cache.manifest import (
    MANIFEST_NAME,
    SHARD_PATTERN,
    VERSION,
    BadFile,
    FileRecord,
    ManifestLine,
    read_lines,
    remove_unreadable,
)
from modules.files import PARTIAL, open_for_writing, remove_tree, replacing, write_fault

Entry: TypeAlias = dict[str, Tensor]

# A shard is written at whichever limit is reached first.
_SHARD_ENTRIES = 64
_SHARD_BYTES = 16 << 20
_SHARD_SECONDS = 30.0


def checksum(entry: Mapping[str, Tensor]) -> int:
    """CRC-32 over names, dtypes, shapes and bytes of an entry's tensors."""
    value = 0
    for name in sorted(entry):
        tensor = entry[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, value)
    return value


class ShardWriter:
    """Adds shards to one rank's folder; if the process is killed, only what is not flushed yet is lost.

    Shards are written in a thread while the next one fills, so that encoding does not wait for the disk.
    Raises TandemError if the folder cannot be written or another run is writing to it. `warn` is called if the file
    system has no locks, so that this cannot be found out.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None] = lambda text: None) -> None:
        self._folder = folder
        self._entries: list[tuple[bytes, Entry]] = []
        self._line = ManifestLine(version=VERSION)
        self._bytes = 0
        self._flushed_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "shards")
        self._writing: Future[None] | None = None
        self._failed = False  # then the exit does not try to flush
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(folder, warn)
            self._next_number = _remove_leftovers(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What is encoded is kept when encoding is interrupted or fails.
        try:
            if not self._failed:
                self.flush()
        finally:
            self._thread.shutdown()
            os.close(self._lock)

    def add(self, key: bytes, entry: Mapping[str, Tensor]) -> None:
        """Keep one encoded view."""
        # Copied, because safetensors refuses tensors that share memory, and views would keep whole batches alive.
        copy = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in entry.items()}
        self._entries.append((key, copy))
        self._bytes += sum(tensor.nbytes for tensor in copy.values())

    def record(self, files: list[FileRecord], bad: BadFile | None = None) -> None:
        """Record the files of an image that is done, or why it is bad; then write a shard if a limit is reached."""
        self._line.files.extend(files)
        if bad is not None:
            self._line.bad.append(bad)
        waited = time.monotonic() - self._flushed_at
        if len(self._entries) >= _SHARD_ENTRIES or self._bytes >= _SHARD_BYTES or waited >= _SHARD_SECONDS:
            self._submit()

    def flush(self) -> None:
        """Write what is pending and wait for it."""
        self._submit()
        self._wait()

    def _submit(self) -> None:
        """Hand what is pending to the thread; at most one shard is being written while the next one fills."""
        self._wait()
        self._writing = self._thread.submit(self._write, self._entries, self._line)
        self._entries, self._line, self._bytes = [], ManifestLine(version=VERSION), 0
        self._flushed_at = time.monotonic()

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, entries: list[tuple[bytes, Entry]], line: ManifestLine) -> None:
        """The shard first, complete under its final name, then the manifest line that lists it."""
        try:
            if entries:
                self._write_shard(entries, line)
            if line.has_content():
                _append(self._folder / MANIFEST_NAME, line.dump())
        except OSError as error:
            self._failed = True
            raise _unwritable(self._folder, error) from error

    def _write_shard(self, entries: list[tuple[bytes, Entry]], line: ManifestLine) -> None:
        name = f"{self._next_number:06d}.safetensors"
        with replacing(self._folder / name) as temporary:
            save_file({f"{n}.{k}": t for n, (_, entry) in enumerate(entries) for k, t in entry.items()}, temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            size = temporary.stat().st_size
        sync_folder(self._folder)
        line.shard, line.shard_bytes = name, size
        line.keys = [key.hex() for key, _ in entries]
        line.checksums = [checksum(entry) for _, entry in entries]
        self._next_number += 1


def _remove_leftovers(folder: Path) -> int:
    """Delete unfinished files of a killed run; returns the number of the next shard."""
    remove_unreadable(folder)
    listed = {line.shard: line.shard_bytes for line in read_lines(folder)}
    highest = max((int(name[:6]) for name in listed if name), default=-1)
    for path in folder.iterdir():
        if re.fullmatch(SHARD_PATTERN, path.name):
            highest = max(highest, int(path.name[:6]))
            if listed.get(path.name) != path.stat().st_size:
                path.unlink()
        elif path.name.startswith(PARTIAL) or path.name.endswith(".tmp"):  # the latter of an earlier version
            remove_tree(path)
    return highest + 1


def _append(path: Path, line: str) -> None:
    with os.fdopen(open_for_writing(path, append=True), "ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            # A torn last line must not swallow this one.
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(folder: Path, warn: Callable[[str], None]) -> int:
    """A file descriptor that holds the folder's lock until it is closed or the process dies.

    Raises TandemError while another run writes to the folder; `warn` as for `ShardWriter`.
    """
    descriptor = open_for_writing(folder / "lock", append=True)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(descriptor)
        raise TandemError(
            f"cache_dir: another run is writing to {str(folder)!r} right now.",
            "Wait until it has cached its images, or give this run another cache_dir.",
        ) from error
    except OSError as error:  # NFS without its lock service, some FUSE file systems
        warn(
            f"cache_dir: the file system of {str(folder)!r} has no locks ({error.strerror or error}), so two runs that "
            "write to it at the same time would not notice each other. Start the second one when the first has cached."
        )
    return descriptor


def _unwritable(folder: Path, error: OSError) -> TandemError:
    kind = TandemError if error.errno == errno.ENOSPC else ConfigError
    return kind(
        f"cache_dir: {str(folder)!r} cannot be written: {write_fault(error, folder)}.",
        "Choose a writable folder on a disk with free space; what is cached so far is kept.",
    )
