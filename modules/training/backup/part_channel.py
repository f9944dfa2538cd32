"""What the backup threads of the ranks say to each other, over a connection of their own to the store.

Rank 0 announces each backup, every other rank answers with the files of its part, or with what went wrong. A rank that
does not see rank 0's run folder sends its files, a chunk at a time.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Annotated, Final, Self

from pydantic import Field

from modules.checkpoint import FileEntry
from modules.distributed import RunStore, parse_value
from modules.files import Record

CHUNK_BYTES: Final = 4 << 20  # torch's store takes values of up to 8 MiB
_FIRST_POLL_S: Final = 0.002
_POLL_EVERY_S: Final = 0.05
_REFUSED: Final = "refused"


class Announcement(Record):
    """The next backup: its ticket, and the folder that is being written; an empty name if there will be none."""

    ticket: Annotated[int, Field(ge=1)]
    folder: Annotated[str, Field(max_length=100, pattern=r"^([\w.-]*\w)?$")]  # no other folder than one in backup/


class PartResult(Record):
    """What became of the part of a rank: its files, or why it could not be written."""

    files: dict[str, FileEntry] = Field(default_factory=dict)
    failure: Annotated[str, Field(max_length=4000)] = ""


class PartChannel:
    """One rank's end, for one thread at a time. All waiting ends with OSError once `stop` is set."""

    def __init__(self, store: RunStore, rank: int, stop: threading.Event) -> None:
        self._store = store.clone().within("backup")
        self._rank, self._stop = rank, stop
        self._announced = 0
        self._chunks = Counter[tuple[int, int]]()  # sent or received, by ticket and rank

    def announce(self, ticket: int, folder: str) -> None:
        """Rank 0: the other ranks are to write their parts of this backup into `folder`."""
        self._announced += 1
        self._store.set(f"announced/{self._announced}", Announcement(ticket=ticket, folder=folder).model_dump_json())

    def next_announcement(self) -> Announcement:
        """The one after that which was returned last. Raises OSError."""
        text = self._poll(f"announced/{self._announced + 1}")
        self._announced += 1
        return parse_value(Announcement, text, "the announcement of a backup")

    def answer(self, ticket: int, result: PartResult) -> None:
        """Tell rank 0 what became of this rank's part."""
        self._store.set(f"part/{ticket}/{self._rank}", result.model_dump_json())

    def result(self, ticket: int, rank: int) -> PartResult:
        """The answer of `rank`; waits for it. Raises OSError."""
        return parse_value(PartResult, self._poll(f"part/{ticket}/{rank}"), f"rank {rank}'s part of a backup")

    def send(self, ticket: int, data: bytes) -> None:
        """Send rank 0 the next chunk; an empty one ends a file. Raises OSError if rank 0 wants no more."""
        self._chunks[ticket, self._rank] += 1
        number = self._chunks[ticket, self._rank]
        self._store.set(f"chunk/{self._rank}", base64.b64encode(data).decode())  # one key: only one is ever kept
        self._store.set(f"sent/{ticket}/{self._rank}/{number}", "sent")
        if self._poll(f"taken/{ticket}/{self._rank}/{number}") == _REFUSED.encode():
            raise OSError("rank 0 cannot write it")

    def receive(self, ticket: int, rank: int) -> Iterator[bytes]:
        """The chunks of the next file that `rank` sends. Raises OSError if it cannot."""
        while True:
            number = self._chunks[ticket, rank] + 1
            self._poll(f"sent/{ticket}/{rank}/{number}", unless_failed=(ticket, rank))
            data = _decoded(self._store.get(f"chunk/{rank}"), rank)
            self._chunks[ticket, rank] = number
            self._store.set(f"taken/{ticket}/{rank}/{number}", "taken")
            if not data:
                return
            yield data

    def refuse(self, ticket: int, rank: int) -> None:
        """Want no more chunks from `rank`."""
        self._store.set(f"taken/{ticket}/{rank}/{self._chunks[ticket, rank] + 1}", _REFUSED)

    def _poll(self, key: str, unless_failed: tuple[int, int] | None = None) -> bytes:
        pause_s = _FIRST_POLL_S
        while (value := self._store.find(key)) is None:
            if self._stop.is_set():
                raise OSError("the run has ended")
            if unless_failed is not None and self._store.check([f"part/{unless_failed[0]}/{unless_failed[1]}"]):
                failure = self.result(*unless_failed).failure
                raise OSError(failure or "the rank has sent too little")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_EVERY_S)
        return value


def _decoded(text: bytes, rank: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise OSError(f"what rank {rank} sends is no part of a file") from None


class SentFile:
    """A file that is written on rank 0's machine: as `HashedFile`, for a rank that does not see its folder."""

    def __init__(self, channel: PartChannel, ticket: int) -> None:
        self._channel, self._ticket = channel, ticket
        self._sha256, self._size = hashlib.sha256(), 0
        self._pending = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            if self._pending:
                self._channel.send(self._ticket, bytes(self._pending))
            self._channel.send(self._ticket, b"")

    @property
    def entry(self) -> FileEntry:
        """Size and hash of what was added."""
        return FileEntry(size=self._size, sha256=self._sha256.hexdigest())

    def add(self, data: memoryview | bytes) -> None:
        """Append bytes; waits until rank 0 has taken them. Raises OSError."""
        view = memoryview(data)
        self._sha256.update(view)
        self._size += len(view)
        while len(view):
            taken = view[: CHUNK_BYTES - len(self._pending)]
            self._pending += taken
            view = view[len(taken) :]
            if len(self._pending) == CHUNK_BYTES:
                self._channel.send(self._ticket, bytes(self._pending))
                self._pending.clear()
