"""Backups that are complete or absent: written aside, checksummed, renamed; the newest valid one is found again."""

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
from safetensors.torch import load_file
from torch import Tensor

from modules.checkpoint.optimizer_state import OptimizerState, Plain
from modules.checkpoint.tensor_file import write_tensors
from modules.config import ResumeError

VERSION = 1
PARTIAL = ".partial-"
FORMER = f"{PARTIAL}former-"


@dataclass(frozen=True)
class Position:
    """Where a run stands, and the facts that must stay the same for it to go on exactly."""

    samples_seen: int
    step: int
    epoch: int
    epoch_size: int
    global_batch_size: int
    world_size: int
    original_learning_rate: float
    learning_rate: float  # after scaling with the world size the run began with
    best_validation_loss: float | None = None
    validations_without_improvement: int = 0
    base: dict[str, str] = field(default_factory=dict)  # a word for each module whose weights no backup holds


@dataclass(frozen=True)
class TrainingState:
    """All that a run needs to go on, whatever the number of ranks."""

    position: Position
    weights: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    optimizer: OptimizerState
    scaler: dict[str, Plain]
    config: Mapping[str, object] = field(default_factory=dict)  # of the run that wrote it; of a backup that was read


class Backups:
    """The folder backup/ of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def write(self, state: TrainingState, config_json: str) -> Path:
        """Write the backup of `state`, then remove the oldest beyond `keep`. Returns its folder.

        Raises OSError (full disk, no permission); a half-written backup is removed and older ones are untouched.
        """
        final = self._folder / f"step-{state.position.step:06d}"
        partial = self._folder / f"{PARTIAL}{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        self._finish_replacement()
        try:
            partial.mkdir(parents=True)
            _write_files(partial, state, config_json, number=1 + max(map(_number, self._complete()), default=0))
            if final.exists():  # the same step again: the former one stays whole until it can be replaced
                final.rename(self._folder / f"{FORMER}{final.name}")
            partial.rename(final)
            _sync(self._folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, SafetensorError):  # safetensors reports a full disk as its own error
                raise OSError(f"{partial}: {error}") from error
            raise
        self._rotate()
        return final

    def newest_valid(self) -> tuple[Path | None, list[str]]:
        """The newest backup that is complete and undamaged, and one sentence for each newer one that is not."""
        damaged: list[str] = []
        self._finish_replacement()
        candidates = self._complete()[::-1]
        candidates.sort(key=lambda path: _number(path) > 0)  # an unreadable manifest first: it may be the newest
        for folder in candidates:
            fault = find_damage(folder)
            if fault is None:
                return folder, damaged
            damaged.append(fault)
        return None, damaged

    def _complete(self) -> list[Path]:
        """In the order of writing, which is not that of steps where somebody went back to an earlier backup."""
        return sorted(self._folder.glob("step-*"), key=lambda path: (_number(path), len(path.name), path.name))

    def _finish_replacement(self) -> None:
        """Put a backup back whose replacement was killed between its two renames."""
        for former in self._folder.glob(f"{FORMER}*"):
            final = self._folder / former.name.removeprefix(FORMER)
            if not final.exists():
                with suppress(OSError):  # another rank was faster, or the folder may only be read
                    former.rename(final)

    def _rotate(self) -> None:
        for folder in self._complete()[: -self._keep]:
            shutil.rmtree(folder, ignore_errors=True)
        for leftover in self._folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)


def find_damage(folder: Path) -> str | None:
    """What is wrong with the backup in `folder`, in a sentence; None where every byte is as it was written."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        files = {name: (facts["size"], facts["sha256"]) for name, facts in manifest["files"].items()}
        version = manifest["version"]
    except FileNotFoundError:
        return f"{folder} is not a complete backup: it has no manifest.json."
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{folder} is damaged: its manifest.json cannot be read."
    if version > VERSION:
        return f"{folder} was written by a newer Tandem (backup version {version}; this one knows {VERSION})."
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{folder} is damaged: {name} is missing."
        if path.stat().st_size != size or _sha256(path) != digest:
            return f"{folder} is damaged: {name} is not as it was written."
    return None


def read_backup(folder: Path) -> TrainingState:
    """The state in `folder`. Raises ResumeError, naming what is wrong, where it is missing or damaged."""
    if not folder.is_dir():
        raise ResumeError(
            f"resume: there is no backup at {str(folder)!r}; give a folder such as runs/NAME/backup/step-000500,"
            " or 'latest'."
        )
    fault = find_damage(folder)
    if fault is not None:
        raise ResumeError(
            f"resume: {fault} Use another backup beside it, or --resume latest, which finds the newest good one."
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
    """Which backup of its run this is, counted from 1; 0 where its manifest cannot tell."""
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
        "kind": optimizer.kind,
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Force a file's or folder's bytes to the disk (folders cannot be opened on Windows, and need not be)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
