"""The files of one backup: what each may hold, and reading them. A backup may come from anybody."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AliasChoices, Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from modules.checkpoint.optimizer_state import OptimizerState, Plain
from modules.config import ResumeError
from modules.files import FileFault, Record, file_size, open_regular, printable, read_bytes, read_json, validate_record

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
BACKUP_NAME: Final = re.compile(r"step-\d{6,16}")
_REQUIRED: Final = frozenset(
    {"weights.safetensors", "optimizer.safetensors", "optimizer.json", "progress.json", "config.json"}
)
FILE_NAMES: Final = _REQUIRED | {"ema.safetensors"}  # besides the manifest
_JSON_LIMIT: Final = 256 << 20  # bytes: optimizer.json has an entry for each parameter

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Positive = Annotated[int, Field(ge=1, lt=1 << 53)]
Text = Annotated[str, Field(max_length=500)]
T = TypeVar("T")


@dataclass(frozen=True)
class Position:
    """How far a run has come, and what must stay the same for it to resume exactly: progress.json."""

    samples_seen: Count
    step: Count
    epoch: Count
    epoch_size: Positive
    global_batch_size: Positive
    world_size: Positive
    original_learning_rate: Annotated[float, Field(gt=0)]
    learning_rate: Annotated[float, Field(gt=0)]  # after scaling by the world size that the run started with
    # of early_stopping_metric; version 0.1 knew only the loss
    best_validation: Annotated[
        float | None, Field(validation_alias=AliasChoices("best_validation", "best_validation_loss"))
    ] = None
    best_step: Count | None = None  # of the best validation
    validations_without_improvement: Count = 0
    base: dict[Text, Text] = field(default_factory=dict)  # module -> fingerprint of weights that are not in the backup


@dataclass(frozen=True)
class TrainingState:
    """The contents of a backup: all that a run needs to resume, on any number of ranks."""

    position: Position
    weights: dict[str, Tensor]  # trainable parameters and buffers, by name
    ema: dict[str, Tensor] | None
    optimizer: OptimizerState
    scaler: dict[str, Plain]
    config: Mapping[str, object] = field(default_factory=dict)  # of the run that wrote the backup; set when it is read


class FileEntry(Record):
    """Size in bytes and SHA-256 in hexadecimal digits of one file."""

    size: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(Record):
    """manifest.json, which is written last: a folder that has none is no backup."""

    version: Positive
    number: Positive  # within the run, in the order of writing
    files: dict[str, FileEntry]

    @model_validator(mode="after")
    def _names(self) -> Manifest:
        unknown, missing = self.files.keys() - FILE_NAMES, _REQUIRED - self.files.keys()
        if self.version <= VERSION and (unknown or missing):
            fault = (
                f"{sorted(missing)[0]} is not listed" if missing else f"{printable(sorted(unknown)[0], 80)} is listed"
            )
            raise ValueError(f"the list of files is wrong: {fault}")
        return self


class _OptimizerFile(Record):
    """optimizer.json."""

    kind: Text
    values: dict[str, dict[Text, Any]]
    groups: list[dict[Text, Any]]
    scaler: dict[Text, bool | int | float | str | None]


def read_manifest(folder: Path) -> Manifest:
    """Its manifest; raises ResumeError if there is none, if it is damaged, or if a newer Tandem wrote it."""
    try:
        data = read_json(folder / MANIFEST)
    except FileNotFoundError:
        raise ResumeError(f"{folder} is not a complete backup: it has no {MANIFEST}.") from None
    except (OSError, FileFault) as error:
        raise ResumeError(f"{folder} is damaged: its {MANIFEST} cannot be read ({error}).") from None
    version = data.get("version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ResumeError(
            f"{folder} was written by a newer Tandem (backup version {version}; this one supports {VERSION})."
        )
    return valid_record(Manifest, data, folder / MANIFEST)


def read_progress(folder: Path) -> Position:
    """How far the run of a backup had come; raises ResumeError."""
    return valid_record(Position, json_of(folder / "progress.json"), folder / "progress.json")


def manifest_sha256(folder: Path) -> str:
    """The hash of the manifest and so of all files; raises ResumeError."""
    try:
        return hashlib.sha256(read_bytes(folder / MANIFEST)).hexdigest()
    except (OSError, FileFault) as error:
        raise ResumeError(f"{folder} is damaged: its {MANIFEST} cannot be read ({error}).") from None


def find_damage(folder: Path) -> str | None:
    """A sentence about what is wrong with the backup in `folder`; None if all checksums match."""
    try:
        manifest = read_manifest(folder)
    except ResumeError as error:
        return str(error)
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            if file_size(path) != entry.size or file_sha256(path) != entry.sha256:
                return f"{folder} is damaged: the checksum of {name} does not match."
        except FileNotFoundError:
            return f"{folder} is damaged: {name} is missing."
        except FileFault as fault:
            return f"{folder} is damaged: {name} {fault}."
        except OSError as error:
            return f"{folder} is damaged: {name} cannot be read ({error.strerror})."
    return None


def read_backup(folder: Path) -> TrainingState:
    """The state in `folder`. Raises ResumeError if it is missing or damaged."""
    fault = find_damage(folder)
    try:
        if fault is None:
            return _read(folder)
    except ResumeError as error:
        fault = str(error)
    raise ResumeError(
        f"resume: {fault} Use another backup of the run, or --resume latest, which finds the newest valid one."
    )


def _read(folder: Path) -> TrainingState:
    # Prodigy has an unlimited growth rate
    saved = valid_record(
        _OptimizerFile, json_of(folder / "optimizer.json", only_finite=False), folder / "optimizer.json"
    )
    return TrainingState(
        position=read_progress(folder),
        weights=read_tensors(folder / "weights.safetensors"),
        ema=read_tensors(folder / "ema.safetensors") if "ema.safetensors" in read_manifest(folder).files else None,
        optimizer=OptimizerState(
            saved.kind, read_tensors(folder / "optimizer.safetensors"), saved.values, saved.groups
        ),
        scaler=dict(saved.scaler),
        config=valid_record(dict[str, object], json_of(folder / "config.json"), folder / "config.json"),
    )


def file_sha256(path: Path) -> str:
    """In hexadecimal digits; raises OSError or FileFault."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_of(file: Path, *, only_finite: bool = True) -> object:
    """The content of a JSON file of a backup. Raises ResumeError if it cannot be read."""
    try:
        return read_json(file, _JSON_LIMIT, only_finite=only_finite)
    except (OSError, FileFault) as error:
        raise ResumeError(f"{file} is damaged: it cannot be read ({error}).") from None


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file of a backup. Raises ResumeError if it is damaged."""
    try:
        return load_file(file)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ResumeError(f"{file} is damaged: {printable(error, 200)}.") from None


def valid_record(kind: type[T], data: object, file: Path) -> T:
    """`data`, the content of `file`, as a record. Raises ResumeError with the first fault."""
    try:
        return validate_record(kind, data)
    except FileFault as error:
        raise ResumeError(f"{file} is damaged: it {error}.") from None
