"""What a backup says of itself without its tensors: manifest, progress and checksums. It may come from anybody."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import AliasChoices, Field, model_validator

from modules.config import ResumeError
from modules.config.schedules import Pace
from modules.files import FileFault, Record, file_size, open_regular, printable, read_bytes, read_json, validate_record

VERSION: Final = 4  # see `version_of`
MANIFEST: Final = "manifest.json"
BACKUP_NAME: Final = re.compile(r"step-\d{6,16}")
_TEXTS: Final = frozenset({"optimizer.json", "progress.json", "config.json"})
DATA: Final = "data.safetensors"  # what the run was trained on
KINDS: Final = ("weights", "optimizer", "ema", "outer")  # of tensors
EMA: Final = "ema"  # which not every backup has
OUTER: Final = "outer"  # likewise: what local updates keep beside the weights
_MOST_PARTS: Final = 99_999
_verified: list[tuple[object, ...]] = []  # the backup whose checksums matched last
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
    # of early_stopping_metric; 0.1.0 knew only the loss
    best_validation: Annotated[
        float | None, Field(validation_alias=AliasChoices("best_validation", "best_validation_loss"))
    ] = None
    best_step: Count | None = None  # of the best validation
    validations_without_improvement: Count = 0
    epochs: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None  # done; up to 0.3.0, see `epochs_done`
    total_steps: Count | None = None  # of the run, as long as nothing changes; backups up to 0.3.0 do not say
    pace: Pace | None = None  # since that number has changed
    machines: Positive = 1  # that train by themselves (local_steps), each with its part of the batch
    base: dict[Text, Text] = field(default_factory=dict)  # module -> fingerprint of weights that are not in the backup

    @property
    def epochs_done(self) -> float:
        """Epochs, the present one in part, also of data that has changed on the way."""
        return self.samples_seen / self.epoch_size if self.epochs is None else self.epochs


class FileEntry(Record):
    """Size in bytes and SHA-256 in hexadecimal digits of one file."""

    size: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(Record):
    """manifest.json, which is written last: a folder that has none is no backup."""

    version: Positive
    number: Positive  # within the run, in the order of writing
    files: dict[str, FileEntry]
    parts: Annotated[int, Field(ge=1, le=_MOST_PARTS)] | None = None  # not in version 1

    @model_validator(mode="after")
    def _names(self) -> Manifest:
        if (self.version == VERSION) != any(name.startswith(OUTER) for name in self.files):
            raise ValueError(
                f"version {self.version} {'needs' if self.version == VERSION else 'has no'} {OUTER} tensors"
            )
        if self.version < VERSION and (self.version == 3) != (DATA in self.files):
            raise ValueError(f"version {self.version} {'needs' if self.version == 3 else 'has no'} {DATA}")
        if self.version < 3 and (self.parts is None) != (self.version == 1):
            raise ValueError(f"version {self.version} {'has no' if self.version == 1 else 'needs a'} number of parts")
        known = file_names(self.parts)
        absent = [kind for kind in (EMA, OUTER) if not any(name.startswith(kind) for name in self.files)]
        optional = {DATA}.union(*(files_of(kind, self.parts) for kind in absent))
        unknown, missing = self.files.keys() - known, known - self.files.keys() - optional
        if unknown or missing:
            fault = (
                f"{sorted(missing)[0]} is not listed" if missing else f"{printable(sorted(unknown)[0], 80)} is listed"
            )
            raise ValueError(f"the list of files is wrong: {fault}")
        return self


def version_of(files: Collection[str], parts: int | None) -> int:
    """The lowest version that knows these files; tensors that are whole are version 1, in parts version 2."""
    if any(name.startswith(OUTER) for name in files):
        return 4
    return 3 if DATA in files else 1 if parts is None else 2


def file_names(parts: int | None) -> frozenset[str]:
    """The files that a backup may have besides the manifest; `parts` is None if its tensors are whole."""
    return (_TEXTS | {DATA}).union(*(files_of(kind, parts) for kind in KINDS))


def files_of(kind: str, parts: int | None) -> set[str]:
    """The files with the tensors of `kind`; `parts` as of `file_names`."""
    return {f"{kind}.safetensors"} if parts is None else {part_file(kind, index, parts) for index in range(parts)}


def part_file(kind: str, index: int, count: int) -> str:
    """The name of the file with what the rank `index` of `count` holds of a kind."""
    return f"{kind}-{index + 1:05d}-of-{count:05d}.safetensors"


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
    if fault := damaged_file(folder, manifest, reading=True):
        return fault
    _verified[:] = [_state_of_files(folder)]
    return None


def is_verified(folder: Path) -> bool:
    """Whether this process has just computed the checksums of this backup, or trusted them, and no file was changed
    since then."""
    return _state_of_files(folder) in _verified


def trust_checksums(folder: Path) -> None:
    """Have `open_backup` not compute what another process of this machine just has; sizes are compared all the same.

    Raises ResumeError without a manifest.
    """
    if damaged_file(folder, read_manifest(folder), reading=False) is None:
        _verified[:] = [_state_of_files(folder)]


def damaged_file(folder: Path, manifest: Manifest, *, reading: bool) -> str | None:
    """A sentence about the first file that is not as the manifest says: by its size, and with `reading` its bytes."""
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            has_its_size = file_size(path) == entry.size
            if not reading and not has_its_size:
                return f"{folder} is damaged: {name} has another size."
            if reading and not (has_its_size and file_sha256(path) == entry.sha256):
                return f"{folder} is damaged: the checksum of {name} does not match."
        except FileNotFoundError:
            return f"{folder} is damaged: {name} is missing."
        except FileFault as fault:
            return f"{folder} is damaged: {name} {fault}."
        except OSError as error:
            return f"{folder} is damaged: {name} cannot be read ({error.strerror})."
    return None


def _state_of_files(folder: Path) -> tuple[object, ...]:
    """Other than before if a file of the backup was replaced or written to."""
    try:
        found = [(path.name, path.lstat()) for path in sorted(folder.iterdir())]
    except OSError:
        return (object(),)  # like no other
    return (folder.absolute(), *((name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in found))


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


def valid_record(kind: type[T], data: object, file: Path) -> T:
    """`data`, the content of `file`, as a record. Raises ResumeError with the first fault."""
    try:
        return validate_record(kind, data)
    except FileFault as error:
        raise ResumeError(f"{file} is damaged: it {error}.") from None
