"""Atomic backups: written to a temporary folder, checksummed, renamed; resuming finds the newest valid one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.checkpoint.optimizer_state import OptimizerState, Plain
from modules.config import ResumeError

VERSION = 1
PARTIAL = ".partial-"
REPLACED = f"{PARTIAL}former-"


@dataclass(frozen=True)
class Position:
    """How far a run has come, and what must stay the same for it to resume exactly: progress.json."""

    samples_seen: int
    step: int
    epoch: int
    epoch_size: int
    global_batch_size: int
    world_size: int
    original_learning_rate: float
    learning_rate: float  # after scaling by the world size that the run started with
    best_validation_loss: float | None = None
    validations_without_improvement: int = 0
    base: dict[str, str] = field(default_factory=dict)  # module -> fingerprint of weights that are not in the backup


@dataclass(frozen=True)
class TrainingState:
    """The contents of a backup: all that a run needs to resume, on any number of ranks."""

    position: Position
    weights: dict[str, Tensor]  # trainable parameters and buffers, by name
    ema: dict[str, Tensor] | None
    optimizer: OptimizerState
    scaler: dict[str, Plain]
    config: Mapping[str, object] = field(default_factory=dict)  # of the run that wrote the backup; set when it is read


class Backups:
    """The folder backup/ of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def write(self, state: TrainingState, config_json: str) -> Path:
        """Write a backup of `state`, then remove the oldest beyond `keep`. Returns its folder.

        Raises OSError (disk full, no permission); a partial backup is removed and older ones stay untouched.
        """
        final = self._folder / f"step-{state.position.step:06d}"
        partial = self._folder / f"{PARTIAL}{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        self._restore_replaced()
        try:
            partial.mkdir(parents=True)
            _write_files(partial, state, config_json, number=1 + max(map(_number, self._complete()), default=0))
            if final.exists():  # the same step again: the old backup stays complete until it is replaced
                final.rename(self._folder / f"{REPLACED}{final.name}")
            partial.rename(final)
            _sync(self._folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, SafetensorError):  # safetensors raises its own error if the disk is full
                raise OSError(f"{partial}: {error}") from error
            raise
        self._rotate()
        return final

    def newest_valid(self) -> tuple[Path | None, list[str]]:
        """The newest backup that is complete and undamaged, and a sentence about each newer one that is not."""
        damaged: list[str] = []
        self._restore_replaced()
        candidates = self._complete()[::-1]
        candidates.sort(key=lambda path: _number(path) > 0)  # an unreadable manifest first: it may be the newest
        for folder in candidates:
            fault = find_damage(folder)
            if fault is None:
                return folder, damaged
            damaged.append(fault)
        return None, damaged

    def _complete(self) -> list[Path]:
        """In the order of writing, which differs from that of steps if a run was resumed from an earlier backup."""
        return sorted(self._folder.glob("step-*"), key=lambda path: (_number(path), len(path.name), path.name))

    def _restore_replaced(self) -> None:
        """Put back a backup if the process was killed between the two renames of its replacement."""
        for replaced in self._folder.glob(f"{REPLACED}*"):
            final = self._folder / replaced.name.removeprefix(REPLACED)
            if not final.exists():
                with suppress(OSError):  # another rank was faster, or the folder is read-only
                    replaced.rename(final)

    def _rotate(self) -> None:
        for folder in self._complete()[: -self._keep]:
            shutil.rmtree(folder, ignore_errors=True)
        for leftover in self._folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)


def find_damage(folder: Path) -> str | None:
    """A sentence about what is wrong with the backup in `folder`; None if all checksums match."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        files = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
        version = manifest["version"]
    except FileNotFoundError:
        return f"{folder} is not a complete backup: it has no manifest.json."
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{folder} is damaged: its manifest.json cannot be read."
    if version > VERSION:
        return f"{folder} was written by a newer Tandem (backup version {version}; this one supports {VERSION})."
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{folder} is damaged: {name} is missing."
        if path.stat().st_size != size or _sha256(path) != digest:
            return f"{folder} is damaged: the checksum of {name} does not match."
    return None


def read_backup(folder: Path) -> TrainingState:
    """The state in `folder`. Raises ResumeError if it is missing or damaged."""
    fault = find_damage(folder)
    if fault is not None:
        raise ResumeError(
            f"resume: {fault} Use another backup of the run, or --resume latest, which finds the newest valid one."
        )
    structure = json.loads((folder / "optimizer.json").read_text("utf-8"))
    return TrainingState(
        position=Position(**json.loads((folder / "progress.json").read_text("utf-8"))),
        weights=load_file(folder / "weights.safetensors"),
        ema=load_file(folder / "ema.safetensors") if (folder / "ema.safetensors").exists() else None,
        optimizer=OptimizerState(
            structure["kind"],
            load_file(folder / "optimizer.safetensors"),
            structure["values"],
            structure["groups"],
        ),
        scaler=structure["scaler"],
        config=json.loads((folder / "config.json").read_text("utf-8")),
    )


def _number(folder: Path) -> int:
    """The backup's number within its run, from 1; 0 if its manifest is unreadable."""
    try:
        return int(json.loads((folder / "manifest.json").read_text("utf-8"))["number"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _write_files(folder: Path, state: TrainingState, config_json: str, number: int) -> None:
    write_tensors(folder / "weights.safetensors", state.weights)
    write_tensors(folder / "optimizer.safetensors", state.optimizer.tensors)
    if state.ema is not None:
        write_tensors(folder / "ema.safetensors", state.ema)
    optimizer = state.optimizer
    structure = {
        "kind": optimizer.class_name,
        "values": optimizer.values,
        "groups": optimizer.groups,
        "scaler": state.scaler,
    }
    (folder / "optimizer.json").write_text(json.dumps(structure), "utf-8")
    (folder / "progress.json").write_text(json.dumps(asdict(state.position), indent=2), "utf-8")
    (folder / "config.json").write_text(config_json, "utf-8")
    names = sorted(path.name for path in folder.iterdir())
    files = {name: {"size": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in names}
    manifest = {"version": VERSION, "number": number, "step": state.position.step, "files": files}
    for name in names:
        _sync(folder / name)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2), "utf-8")
    _sync(folder / "manifest.json")
    _sync(folder)


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors`, which may be live ones as long as they do not change meanwhile.

    Raises OSError or SafetensorError.
    """
    ready: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        saved = to_cpu(tensor)
        storage = saved.untyped_storage().data_ptr()
        ready[name] = saved.clone() if storage in storages else saved  # safetensors rejects tied weights
        storages.add(storage)
    save_file(ready, file)


def to_cpu(tensor: Tensor) -> Tensor:
    """The tensor as safetensors requires it: on the CPU and contiguous, copied only if it is not."""
    return tensor.detach().cpu().contiguous()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Flush a file or folder to disk (not on Windows, where folders cannot be opened)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
