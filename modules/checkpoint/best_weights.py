"""The weights of a run's best validation: one folder in best/, named after its step and metric."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field
from torch import Tensor

from modules.checkpoint.backup_files import read_tensors
from modules.checkpoint.backups import sync_to_disk
from modules.checkpoint.hashed_files import write_bytes, write_tensors
from modules.config import ResumeError
from modules.files import (
    PARTIAL,
    REPLACED,
    FileFault,
    Record,
    file_size,
    is_link,
    printable,
    put_back_replaced,
    read_bytes,
    remove_tree,
)
from modules.run.folder.backup_manifest import Count, Position, Text, file_sha256, json_of, valid_record

WEIGHTS: Final = "weights.safetensors"
INFO: Final = "best.json"  # written last
BEST_FILES: Final = frozenset({WEIGHTS, INFO})
_NAME: Final = re.compile(r"step-(\d{6,16})-.+")
_METRIC_CHARACTERS: Final = 40


@dataclass(frozen=True)
class BestValidation:
    """Which validation was the best one: best.json."""

    metric: Text
    value: float
    position: Position

    @property
    def folder_name(self) -> str:
        """Such as step-000120-loss-0.0312."""
        metric = re.sub(r"[^A-Za-z0-9_]+", "-", self.metric)[:_METRIC_CHARACTERS]
        return f"step-{self.position.step:06d}-{metric}-{self.value:.4g}"


class _Info(Record):
    version: Annotated[int, Field(ge=1, le=1)]
    metric: Text
    value: float
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of the weights
    size: Count  # of the weights in bytes


class BestWeights:
    """The folder best/ of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, weights: Mapping[str, Tensor], best: BestValidation, keep: Collection[int]) -> Path:
        """Write the weights of `best`, then remove those of other steps than `keep`. Returns their folder.

        Raises OSError (disk full, no permission, a link); older ones then stay.
        """
        if is_link(self._folder):
            raise OSError(errno.ELOOP, "is a link to another folder", str(self._folder))
        final = self._folder / best.folder_name
        partial = self._folder / f"{PARTIAL}{final.name}"
        remove_tree(partial)
        try:
            partial.mkdir(parents=True)
            metadata = {"step": str(best.position.step), "metric": best.metric, "value": repr(best.value)}
            written = write_tensors(partial / WEIGHTS, weights, metadata)
            content = {
                "version": 1,
                "metric": best.metric,
                "value": best.value,
                "position": asdict(best.position),
                **written.model_dump(),
            }
            write_bytes(partial / INFO, json.dumps(content, indent=2).encode())
            sync_to_disk(partial)
            if os.path.lexists(final):  # by a run that went back to an earlier backup
                former = self._folder / f"{REPLACED}{final.name}"
                remove_tree(former)
                final.rename(former)
            partial.rename(final)
            sync_to_disk(self._folder)
        except OSError:
            remove_tree(partial)
            put_back_replaced(self._folder)
            raise
        for other in self._folder.iterdir():
            named = _NAME.fullmatch(other.name)
            is_old = named is not None and other != final and int(named[1]) not in keep
            if is_old or other.name.startswith(PARTIAL):
                remove_tree(other)
        return final

    def find(self, step: int) -> Path | None:
        """The folder with the weights of the best validation at `step`, if it is there."""
        if is_link(self._folder) or not self._folder.is_dir():
            return None
        put_back_replaced(self._folder)
        found = [path for path in self._folder.glob(f"step-{step:06d}-*") if (path / INFO).is_file()]
        return max(found, key=lambda path: (path / INFO).stat().st_mtime, default=None)


def best_sha256(folder: Path) -> str:
    """The hash of best.json, and so of the weights. Raises ResumeError."""
    try:
        return hashlib.sha256(read_bytes(folder / INFO)).hexdigest()
    except (OSError, FileFault) as error:
        raise ResumeError(f"{folder} is damaged: its {INFO} cannot be read ({error}).") from None


def read_best(folder: Path, *, is_verified: bool = False) -> tuple[BestValidation, dict[str, Tensor]]:
    """What `BestWeights.write` wrote. Raises ResumeError if it is damaged.

    `is_verified`: the checksum is not computed, because another process of this machine just has.
    """
    file, weights = folder / INFO, folder / WEIGHTS
    data = json_of(file)
    info = valid_record(_Info, data, file)
    position = valid_record(Position, data.get("position") if isinstance(data, dict) else None, file)
    try:
        intact = file_size(weights) == info.size and (is_verified or file_sha256(weights) == info.sha256)
    except (OSError, FileFault) as error:
        raise ResumeError(f"{weights} cannot be read ({printable(error, 200)}).") from None
    if not intact:
        raise ResumeError(f"{folder} is damaged: the checksum of {WEIGHTS} does not match.")
    return BestValidation(info.metric, info.value, position), read_tensors(weights)
