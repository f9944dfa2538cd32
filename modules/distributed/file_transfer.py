"""Send the files of one rank's folder to ranks that cannot see that folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor

from modules.config import TrainingError
from modules.distributed.run_store import RunStore, parse_value
from modules.files import PARTIAL, open_regular, printable, remove_tree

_CHUNK_BYTES = 16 << 20


def broadcast_folder(
    source: Path | None,
    target: Path | None,
    sender: int,
    names: Collection[str],
    *,
    key: str,
    store: RunStore,
    group: dist.ProcessGroup,
) -> None:
    """Copy the files in `source` of rank `sender` to the folder `target` of every rank on which it is not None.

    Only files with one of `names` are sent or accepted. Every rank of `group`, which is a CPU group, calls it;
    `source` matters only on the sender; each `key` is used once. `target` appears completely or not at all. Raises
    OSError if a file cannot be read, or not be written here; the other ranks still get theirs. Raises TrainingError,
    on all ranks alike, if the sender names other files.
    """
    if dist.get_rank() == sender:
        assert source is not None, "the sender has something to send"
        files = {name: (source / name).stat().st_size for name in sorted(names) if (source / name).is_file()}
        store.set(f"delivery/{key}", json.dumps(files))
        chunks = _read(source, files)
    else:
        files = _listed(store.get(f"delivery/{key}"), names, sender)
        chunks = ((file, chunk) for file, size in files.items() for chunk in _chunks(size))
    copy = _FolderWriter(target)
    for file, chunk in chunks:
        dist.broadcast(chunk, src=sender, group=group)
        copy.add(file, chunk)
    copy.finish()


def _listed(text: bytes, names: Collection[str], sender: int) -> dict[str, int]:
    """{file name: bytes}, as the sender wrote it."""
    files = parse_value(dict[str, Annotated[int, Field(ge=0, lt=1 << 50)]], text, f"rank {sender}'s list of files")
    unknown = sorted(files.keys() - names)
    if unknown:
        raise TrainingError(
            f"rank {sender} sends a file that is not expected, {printable(unknown[0], 80)!r}; nothing was written."
        )
    return files


def _read(folder: Path, files: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    """(file name, its next bytes as a uint8 tensor [at most _CHUNK_BYTES])."""
    for name, size in files.items():
        with open_regular(folder / name) as file:
            for chunk in _chunks(size):
                if file.readinto(chunk.numpy().data) != len(chunk):
                    raise OSError(f"{folder / name} was truncated while it was sent")
                yield name, chunk


def _chunks(size: int) -> Iterator[Tensor]:
    for start in range(0, size, _CHUNK_BYTES):
        yield torch.empty(min(_CHUNK_BYTES, size - start), dtype=torch.uint8)


class _FolderWriter:
    """Writes next to `target` and renames at the end; raises only then, because the other ranks continue."""

    def __init__(self, target: Path | None) -> None:
        self._target = target
        self._error: OSError | None = None
        if target is not None:
            self._partial = target.with_name(f"{PARTIAL}{target.name}")
            remove_tree(self._partial)

    def add(self, name: str, chunk: Tensor) -> None:
        """Append the next bytes of a file; `chunk` is uint8 [N]."""
        if self._target is None or self._error is not None:
            return
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            with (self._partial / name).open("ab") as file:
                file.write(chunk.numpy().data)
        except OSError as error:
            self._error = error

    def finish(self) -> None:
        """All files have arrived. Raises the first error of `add`, after removing what was written."""
        if self._target is None:
            return
        if self._error is not None:
            remove_tree(self._partial)
            raise self._error
        if self._target.exists():
            remove_tree(self._target)
        self._partial.rename(self._target)
