"""Writes a file block by block and reads each block back from the disk, in threads.

Direct I/O (O_DIRECT of Linux's open(2)) spares the processors the copies through the system's cache, and what is read
back comes from the device. Where there is none, the cache is flushed and dropped before reading.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

try:
    from fcntl import F_GETFL, F_SETFL, fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHUNK_BYTES: Final = 1 << 20  # are processed at once, while they are in the processor's cache
BLOCK_BYTES: Final = 16 << 20  # large enough that a disk has several requests to work on
_BLOCKS: Final = 4  # one that is filled, one that is written, two that are read back
_READERS: Final = 2
_ALIGNMENT: Final = 4096  # of addresses, positions and lengths of direct I/O; no disk asks for more
_preadv: Final = os.preadv if hasattr(os, "preadv") else None
CAN_READ_WHILE_WRITING: Final = _preadv is not None

Bytes = NDArray[np.uint8]


@dataclass
class Block:
    """The next bytes of a file, from `start` on; `used` of them are filled."""

    memory: Bytes
    start: int = 0
    used: int = 0

    @property
    def room(self) -> int:
        """Bytes that still fit."""
        return len(self.memory) - self.used

    def fill(self, data: Bytes) -> None:
        """Append `data`, which fits."""
        np.copyto(self.memory[self.used : self.used + len(data)], data)
        self.used += len(data)


class VerifiedWriter:
    """Takes the blocks of one file in their order; its threads start with the second one."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of an empty file, for reading and writing; it has to stay open until `stop`."""
        self._descriptor = descriptor
        self._is_direct = False
        self._free: queue.SimpleQueue[Block] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._filled: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._made = 0
        self._threads: list[threading.Thread] = []
        self._error: OSError | None = None

    def block(self, size: int) -> Block:
        """An empty block for `size` bytes or more; waits until one is free. Raises OSError if the disk has failed."""
        if self._made < _BLOCKS and self._free.empty():
            self._made += 1
            found = Block(_aligned(BLOCK_BYTES if self._made > 1 else size))
        else:
            found = self._free.get()
        self._raise_error()
        found.used = 0
        return found

    def put(self, block: Block) -> None:
        """Have a full block written; the last one may be less than full. Raises OSError if the system refuses threads
        or memory."""
        if not self._threads:
            memories = [_aligned(BLOCK_BYTES) for _ in range(_READERS * CAN_READ_WHILE_WRITING)]
            self._is_direct = self._set_direct(True)
            self._start("write", self._write_all)
            for memory in memories:
                self._start("read back", self._read_all, memory)
        self._filled.put(block)

    def _start(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, name=name, args=arguments, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            raise OSError(errno.EAGAIN, "the system refuses another thread") from None
        self._threads.append(thread)

    def finish(self, last: Block) -> None:
        """Write the last block, and wait until all is read back. Raises OSError."""
        if self._threads:
            self.put(last)
            self.stop()
        else:
            self._write(last)
            self._verify(last, _aligned(last.used))
        self._raise_error()

    def stop(self) -> None:
        """Leave no thread that uses the descriptor."""
        if self._threads:
            self._filled.put(None)
            for thread in self._threads:
                thread.join()
            self._threads = []

    def _write_all(self) -> None:
        while (block := self._filled.get()) is not None:
            self._unless_failed(lambda: self._write(block))  # called at once
            (self._written if CAN_READ_WHILE_WRITING else self._free).put(block)
        for _ in range(_READERS):
            self._written.put(None)

    def _read_all(self, memory: Bytes) -> None:
        while (block := self._written.get()) is not None:
            self._unless_failed(lambda: self._verify(block, memory))  # called at once
            self._free.put(block)

    def _unless_failed(self, work: Callable[[], None]) -> None:
        """After the first error the blocks only pass."""
        if self._error is None:
            try:
                work()
            except OSError as error:
                self._error = error
            except Exception as error:  # noqa: BLE001  # whatever it is, nobody may wait for a thread that has ended
                self._error = OSError(errno.EIO, f"{type(error).__name__}: {error}")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self, block: Block) -> None:
        whole = block.used - block.used % _ALIGNMENT if self._is_direct else block.used
        self._write_bytes(block.memory[:whole])
        if whole < block.used:  # the end of the file
            self._is_direct = self._set_direct(False)
            self._write_bytes(block.memory[whole : block.used])

    def _write_bytes(self, data: Bytes) -> None:
        done = 0
        while done < len(data):
            try:
                done += os.write(self._descriptor, data[done:].data)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._is_direct = self._set_direct(False)  # a file system without it, or the rest of a full disk

    def _verify(self, block: Block, memory: Bytes) -> None:
        if not CAN_READ_WHILE_WRITING:
            return
        if not self._is_direct:
            getattr(os, "fdatasync", os.fsync)(self._descriptor)
        drop_from_cache(self._descriptor, block.start, block.start + block.used)
        read = 0
        while read < block.used:
            # direct I/O reads whole units, of which there are fewer at the end of a file
            wanted = memory[read : read + -(-(block.used - read) // _ALIGNMENT) * _ALIGNMENT]
            count = self._read(wanted, block.start + read)
            if count == 0:
                raise OSError(errno.EIO, "the disk returns less than was written")
            read = min(read + count, block.used)
        if not _equal(memory[: block.used], block.memory[: block.used]):
            raise OSError(errno.EIO, "the disk does not return what was written")

    def _read(self, memory: Bytes, position: int) -> int:
        assert _preadv is not None
        try:
            return _preadv(self._descriptor, [memory.data], position)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
            self._is_direct = self._set_direct(False)
            return _preadv(self._descriptor, [memory.data], position)

    def _set_direct(self, wanted: bool) -> bool:
        """Whether the file is now written and read past the system's cache."""
        if fcntl is None or not hasattr(os, "O_DIRECT"):
            return False
        flags = fcntl(self._descriptor, F_GETFL)
        try:
            fcntl(self._descriptor, F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
        except OSError:
            return False
        return wanted


def drop_from_cache(descriptor: int, start: int, end: int) -> None:
    """Have the next reading of flushed bytes come from the disk, where the system can do that."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def _aligned(size: int) -> Bytes:
    """At least `size` bytes of memory, aligned and as long as direct I/O asks for."""
    return np.frombuffer(mmap.mmap(-1, max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT), np.uint8)


def _equal(one: Bytes, other: Bytes) -> bool:
    """By memcmp of the C library, which takes three quarters of numpy's time and holds no lock of the interpreter."""
    assert _memcmp is not None
    return len(one) == len(other) and _memcmp(one.ctypes.data, other.ctypes.data, len(one)) == 0


def _memcmp_of_system() -> Callable[[int, int, int], int]:
    found = ctypes.CDLL(None).memcmp
    found.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    found.restype = ctypes.c_int
    return found


_memcmp = _memcmp_of_system() if CAN_READ_WHILE_WRITING else None
