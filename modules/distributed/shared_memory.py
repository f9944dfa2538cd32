"""Memory that the ranks of a machine share: filled once, by the first of them, and there once.

On Linux it is a file without a name or a disk (memfd_create), which the kernel frees with the last process that has it
open or mapped, however the processes end. The other ranks open it by the first one's entry in /proc, and map it so that
a write would be their own. Elsewhere, and where that is not allowed, each rank has and fills memory of its own.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, BinaryIO, Final

import torch
from pydantic import Field
from torch import Tensor

from modules.distributed.rank_group import RankGroup
from modules.distributed.run_store import parse_value
from modules.files import FileFault, Record, open_regular
from modules.machine import machine_id

_HEADER: Final = 256  # bytes, with the token; a multiple of every alignment


class _Announcement(Record):
    """Where the other ranks of the machine find the memory; no process if it is not shared."""

    process_id: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    descriptor: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    token: Annotated[str, Field(max_length=64)] = ""


def fill_once_per_machine(name: str, size: int, fill: Callable[[Tensor], None], ranks: RankGroup) -> Tensor:
    """Memory that `fill` has been called with, uint8 [size], the same content on every rank of a machine.

    Called by all ranks. `fill` gets zeros or anything else, on the first rank of each machine alone wherever memory can
    be shared; what it raises ends the run on all of them. `name` is what the others are said to wait for.
    """
    own = machine_id() if sys.platform == "linux" else f"rank {ranks.rank}"
    machines = ranks.gather(f"machines of {name}", own)
    first = machines.index(own)
    file, announcement = None, _Announcement()
    if ranks.rank == first and machines.count(own) > 1:
        file, announcement = _create(size)
    sent = ranks.gather(f"memory of {name}", json.dumps(announcement.model_dump()))[first]
    if ranks.rank != first:
        file = _open(parse_value(_Announcement, sent, f"the memory of rank {first}"), size)
    private: list[Tensor] = []

    def work() -> None:
        if file is None:
            private.append(torch.empty(size, dtype=torch.uint8))
            fill(private[0])
        elif ranks.rank == first:
            fill(_mapped(file, size, mmap.ACCESS_WRITE))

    try:
        ranks.run_on_all(name, work)
        return private[0] if file is None else _mapped(file, size, mmap.ACCESS_COPY)
    finally:
        if file is not None:
            file.close()


def _create(size: int) -> tuple[BinaryIO | None, _Announcement]:
    """Memory with a token at its start; none if the system refuses it."""
    if sys.platform != "linux":
        return None, _Announcement()
    with suppress(OSError):
        file = os.fdopen(os.memfd_create("tandem"), "w+b", buffering=0)
        try:
            os.truncate(file.fileno(), _HEADER + size)
            token = secrets.token_hex(16)
            file.write(token.encode())
        except OSError:
            file.close()
            raise
        return file, _Announcement(process_id=os.getpid(), descriptor=file.fileno(), token=token)
    return None, _Announcement()


def _open(announcement: _Announcement, size: int) -> BinaryIO | None:
    """The memory that another rank has announced; none if it is not shared or not to be seen from here."""
    if not announcement.process_id:
        return None
    try:
        file = open_regular(f"/proc/{announcement.process_id}/fd/{announcement.descriptor}")
    except (OSError, FileFault):
        return None
    is_ours = os.fstat(file.fileno()).st_size == _HEADER + size
    if is_ours and file.read(len(announcement.token)) == announcement.token.encode():
        return file
    file.close()
    return None


def _mapped(file: BinaryIO, size: int, access: int) -> Tensor:
    """The file's content, uint8 [size]; it stays mapped as long as the tensor."""
    mapping = mmap.mmap(file.fileno(), _HEADER + size, access=access)
    return torch.frombuffer(mapping, dtype=torch.uint8, offset=_HEADER, count=size)
