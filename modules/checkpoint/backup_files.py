"""The tensors of one backup, and reading them. A backup may come from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from modules.checkpoint.optimizer_state import OptimizerState, Plain
from modules.checkpoint.stored_tensors import Shard, StoredTensor, stored_tensors
from modules.config import ResumeError
from modules.files import Record, printable
from modules.run.folder.backup_manifest import (
    DATA,
    EMA,
    OUTER,
    Position,
    Text,
    files_of,
    find_damage,
    is_verified,
    json_of,
    read_manifest,
    read_progress,
    valid_record,
)


@dataclass(frozen=True)
class TrainingState:
    """The contents of a backup: all that a run needs to resume, on any number of ranks."""

    position: Position
    weights: dict[str, Tensor]  # trainable parameters and buffers, by name
    ema: dict[str, Tensor] | None
    optimizer: OptimizerState
    scaler: dict[str, Plain]
    outer: dict[str, Tensor] | None = None  # of local updates: the weights and momentum of the last outer step
    config: Mapping[str, object] = field(default_factory=dict)  # of the run that wrote the backup; set when it is read
    data: bytes | None = None  # what it was trained on (data_record), as it is written
    part: Shard | None = None  # that its tensors are, of a state that is divided among the ranks; None: they are whole


@dataclass(frozen=True)
class StoredOptimizer:
    """As `OptimizerState`, with tensors that are still in the files."""

    class_name: str
    tensors: Mapping[str, StoredTensor]
    values: dict[str, dict[str, Plain]]
    groups: list[dict[str, Plain]]


@dataclass(frozen=True)
class StoredState:
    """As `TrainingState`, with tensors that are still in the files: a rank reads the rows that it needs."""

    position: Position
    weights: Mapping[str, StoredTensor]
    ema: Mapping[str, StoredTensor] | None
    outer: Mapping[str, StoredTensor] | None
    optimizer: StoredOptimizer
    scaler: dict[str, Plain]
    config: Mapping[str, object]
    data: Path | None  # the file with what it was trained on, which backups of 0.2.0 and of custom data sets have not

    def read(self) -> TrainingState:
        """All of it, in whole tensors. Raises ResumeError."""
        stored = self.optimizer
        return TrainingState(
            position=self.position,
            weights=_whole(self.weights),
            ema=None if self.ema is None else _whole(self.ema),
            optimizer=OptimizerState(stored.class_name, _whole(stored.tensors), stored.values, stored.groups),
            scaler=self.scaler,
            outer=None if self.outer is None else _whole(self.outer),
            config=self.config,
        )


class _OptimizerFile(Record):
    """optimizer.json."""

    kind: Text
    values: dict[str, dict[Text, Any]]
    groups: list[dict[Text, Any]]
    scaler: dict[Text, bool | int | float | str | None]


def read_backup(folder: Path) -> TrainingState:
    """The state in `folder`, in whole tensors. Raises ResumeError if it is missing or damaged."""
    return open_backup(folder).read()


def open_backup(folder: Path) -> StoredState:
    """The state in `folder`, whose tensors are read when they are asked for. Raises ResumeError if it is damaged.

    The checksums are not computed if `is_verified`.
    """
    fault = None if is_verified(folder) else find_damage(folder)
    try:
        if fault is None:
            return _open(folder)
    except ResumeError as error:
        fault = str(error)
    raise not_resumable(fault)


def not_resumable(fault: str) -> ResumeError:
    """The error for a backup that has this fault, a sentence."""
    return ResumeError(
        f"resume: {fault} Use another backup of the run, or --resume latest, which finds the newest valid one."
    )


def _open(folder: Path) -> StoredState:
    # Prodigy has an unlimited growth rate
    saved = valid_record(
        _OptimizerFile, json_of(folder / "optimizer.json", only_finite=False), folder / "optimizer.json"
    )
    manifest, position = read_manifest(folder), read_progress(folder)

    def stored(kind: str) -> dict[str, StoredTensor]:
        files = [folder / name for name in sorted(files_of(kind, manifest.parts))]
        return stored_tensors(files, None if manifest.parts is None else position.step)

    def stored_if_there(kind: str) -> dict[str, StoredTensor] | None:
        return stored(kind) if any(name.startswith(kind) for name in manifest.files) else None

    return StoredState(
        position=position,
        weights=stored("weights"),
        ema=stored_if_there(EMA),
        outer=stored_if_there(OUTER),
        optimizer=StoredOptimizer(saved.kind, stored("optimizer"), saved.values, saved.groups),
        scaler=dict(saved.scaler),
        config=valid_record(dict[str, object], json_of(folder / "config.json"), folder / "config.json"),
        data=folder / DATA if DATA in manifest.files else None,
    )


def _whole(tensors: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    return {name: tensor[...] for name, tensor in tensors.items()}


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file of a backup. Raises ResumeError if it is damaged."""
    try:
        return load_file(file)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ResumeError(f"{file} is damaged: {printable(error, 200)}.") from None
