"""Atomic backups: written to a temporary folder, read back, renamed; resuming finds the newest valid one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from modules.checkpoint.backup_files import TrainingState
from modules.checkpoint.hashed_files import write_bytes, write_tensors
from modules.checkpoint.stored_tensors import Shard
from modules.checkpoint.tensor_sink import TensorSink, add_tensors
from modules.config import ResumeError
from modules.files import PARTIAL, REPLACED, is_link, put_back_replaced, remove_tree
from modules.run.folder.backup_list import Rotation, backup_number, complete_backups, list_backups, misplaced
from modules.run.folder.backup_manifest import (
    DATA,
    MANIFEST,
    FileEntry,
    find_damage,
    part_file,
    read_progress,
    version_of,
)


class Backups:
    """The folder backup/ of one run."""

    def __init__(self, folder: Path, keep: int, every: int = 0, days: float = 0.0) -> None:
        """Those stay that `Rotation` says."""
        self._folder = folder
        self._rotation = Rotation(keep, every, days)

    def write(self, state: TrainingState, config_json: str) -> Path:
        """Write a backup of `state` and read it back, then remove those that are outdated. Returns its folder.

        Raises OSError (disk full, no permission, a link, a disk that returns other bytes); a partial backup is removed
        and older ones stay untouched.
        """
        return self.write_files(state.position.step, lambda folder: _write_files(folder, state, config_json))

    def write_files(self, step: int, write: Callable[[Path], dict[str, FileEntry]], parts: int | None = None) -> Path:
        """As `write`, of the files that `write` puts into the folder it is given; `parts` as in the manifest."""
        if is_link(self._folder):
            raise OSError(errno.ELOOP, "is a link to another folder", str(self._folder))
        final = self._folder / f"step-{step:06d}"
        partial = self._folder / f"{PARTIAL}{final.name}"
        remove_tree(partial)
        put_back_replaced(self._folder)
        try:
            partial.mkdir(parents=True)
            number = 1 + max(map(backup_number, complete_backups(self._folder)), default=0)
            _write_manifest(partial, write(partial), number, step, parts)
            self.put_in_place(partial, final)
        except OSError:
            remove_tree(partial)
            raise
        self._rotate()
        return final

    def put_in_place(self, partial: Path, final: Path) -> None:
        """Rename a complete backup to its name; one of that name stays complete until it is replaced."""
        former = self._folder / f"{REPLACED}{final.name}"
        if os.path.lexists(final):
            remove_tree(former)  # which an earlier replacement could not remove
            final.rename(former)
        try:
            partial.rename(final)
        except OSError:
            put_back_replaced(self._folder)
            raise
        sync_to_disk(self._folder)
        remove_tree(former)

    def newest_valid(self) -> tuple[Path | None, list[str]]:
        """The newest backup that is complete and undamaged, and a sentence about each newer one that is not."""
        damaged: list[str] = []
        put_back_replaced(self._folder)
        candidates = complete_backups(self._folder)[::-1]
        candidates.sort(key=lambda path: backup_number(path) > 0)  # an unreadable manifest first: it may be the newest
        for folder in candidates:
            fault = misplaced(folder) or find_damage(folder)
            if fault is None:
                return folder, damaged
            damaged.append(fault)
        return None, damaged

    def best_steps(self) -> set[int]:
        """The steps of the best validations up to each backup: a resumed run may need their weights."""
        found = set()
        for folder in complete_backups(self._folder):
            with suppress(ResumeError):
                found.add(read_progress(folder).best_step)
        return {step for step in found if step is not None}

    def _rotate(self) -> None:
        for each in self._rotation.outdated(list_backups(self._folder)):
            with suppress(OSError):  # renamed first: a backup is there as a whole or not at all
                each.folder.rename(self._folder / f"{PARTIAL}old-{each.folder.name}")
        for leftover in self._folder.glob(f"{PARTIAL}*"):
            remove_tree(leftover)


def _write_files(folder: Path, state: TrainingState, config_json: str) -> dict[str, FileEntry]:
    files = write_texts(folder, state, config_json)
    for name, each in _tensors(state):
        files[f"{name}.safetensors"] = write_tensors(folder / f"{name}.safetensors", each)
    return files


def write_texts(folder: Path, state: TrainingState, config_json: str) -> dict[str, FileEntry]:
    """Write what of a backup no part holds. Raises OSError."""
    optimizer = state.optimizer
    structure = {
        "kind": optimizer.class_name,
        "values": optimizer.values,
        "groups": optimizer.groups,
        "scaler": state.scaler,
    }
    texts = {
        "config": config_json,
        "optimizer": json.dumps(structure),
        "progress": json.dumps(asdict(state.position), indent=2),
    }
    files = {f"{name}.json": write_bytes(folder / f"{name}.json", text.encode()) for name, text in texts.items()}
    return files if state.data is None else {**files, DATA: write_bytes(folder / DATA, state.data)}


def write_part(
    state: TrainingState, part: Shard, open_file: Callable[[str], AbstractContextManager[TensorSink]]
) -> dict[str, FileEntry]:
    """Write the tensors of one rank's part into the files that `open_file` opens by their names. Raises OSError."""
    files = {}
    for kind, tensors in _tensors(state):
        name = part_file(kind, part.index, part.count)
        with open_file(name) as file:
            add_tensors(file, tensors, part.metadata(kind, state.position.step))
        files[name] = file.entry
    return files


def part_files(state: TrainingState, index: int, count: int) -> list[str]:
    """The names of the files that `write_part` of the rank `index` of `count` writes, in their order."""
    return [part_file(kind, index, count) for kind, _ in _tensors(state)]


def _tensors(state: TrainingState) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """By kind, those that there are."""
    kinds = {"ema": state.ema, "optimizer": state.optimizer.tensors, "outer": state.outer, "weights": state.weights}
    return ((kind, tensors) for kind, tensors in kinds.items() if tensors is not None)


def _write_manifest(folder: Path, files: dict[str, FileEntry], number: int, step: int, parts: int | None) -> None:
    manifest = {
        "version": version_of(files, parts),
        **({} if parts is None else {"parts": parts}),
        "number": number,
        "step": step,
        "files": {name: files[name].model_dump() for name in sorted(files)},
    }
    write_bytes(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
    sync_to_disk(folder)


def to_cpu(tensor: Tensor) -> Tensor:
    """The tensor as safetensors requires it: on the CPU and contiguous, copied only if it is not."""
    return tensor.detach().cpu().contiguous()


def sync_to_disk(path: Path) -> None:
    """Flush a file or folder to disk (not on Windows, where folders cannot be opened)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all_to_disk(path: Path) -> None:
    """Flush a file, or a folder with all that is in it, to disk."""
    for folder, _, files in os.walk(path):
        for name in files:
            sync_to_disk(Path(folder, name))
        sync_to_disk(Path(folder))
    if path.is_file():
        sync_to_disk(path)
