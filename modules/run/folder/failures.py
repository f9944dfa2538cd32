"""Records why ranks or a start failed, one JSON file each, and finds the failure that caused the others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field

from modules.config import TandemError
from modules.files import FileFault, mask_secrets, open_for_writing, printable, read_json, validate_record
from modules.machine import hostname
from modules.run.console import warn
from modules.run.folder.error_help import explain_exception
from modules.run.folder.error_rules import SECONDARY_KINDS
from modules.run.folder.rank_log import rank_lines
from modules.run.folder.run_folder import RunFolder

# Larger than the longest traceback.
_RESERVED_BYTES: Final = 1 << 16
_MAX_TEXT, _MAX_TRACEBACK = 4000, 100_000  # characters


@dataclass(frozen=True)
class Failure:
    """The failure of one rank; `time` in seconds since 1970."""

    rank: Annotated[int, Field(ge=0, lt=1 << 20)]
    host: str
    kind: str
    message: str
    advice: str = ""
    traceback: str = ""
    time: Annotated[float, Field(ge=0, lt=1e11)] = field(default_factory=time.time)

    @classmethod
    def from_exception(cls, error: BaseException, *, rank: int, traceback: str, training: bool = False) -> Self:
        """The failure of this process by an exception; `training`: whether the first step was reached."""
        explanation = explain_exception(error, training=training)
        message, advice, stack = map(mask_secrets, (explanation.message, explanation.advice, traceback))
        return cls(rank, hostname(), explanation.kind, message, advice, stack)

    def made_printable(self) -> Self:
        """This failure, of another process or machine, with texts that are safe to show."""
        return replace(
            self,
            host=printable(self.host, 200),
            kind=printable(self.kind, 100),
            message=printable(self.message, _MAX_TEXT, lines=True),
            advice=printable(self.advice, _MAX_TEXT, lines=True),
            traceback=printable(self.traceback, _MAX_TRACEBACK, lines=True),
        )

    def event_fields(self) -> dict[str, object]:
        """The fields of the `error` event."""
        return {name: getattr(self, name) for name in ("rank", "host", "kind", "message", "advice")}

    @property
    def is_secondary(self) -> bool:
        """Whether another rank's failure most likely caused this one."""
        return self.kind in SECONDARY_KINDS


def record_failure(folder: RunFolder, failure: Failure, *, keep_existing: bool = False, since: float = 0.0) -> None:
    """Write log/rank-N.error.json atomically and the traceback to the rank's log; never raises OSError.

    `keep_existing` keeps a failure already recorded for this rank, unless it is of the time before `since`.
    """
    target = folder.failure_file(failure.rank)
    if keep_existing and _is_recorded(target, since):
        return
    text = json.dumps(asdict(failure), indent=1)
    with suppress(OSError):
        folder.log_dir.mkdir(parents=True, exist_ok=True)
    append_traceback(folder, failure)
    # Other ranks may write the same file at the same time.
    temporary = target.with_suffix(f".{os.getpid()}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        # The failure may be a full disk: fall back to the reserved file, then to standard error.
        with suppress(OSError):
            temporary.unlink()
        if not _use_reserve(folder, failure.rank, text):
            is_explained = failure.kind != "error" or failure.advice
            shown = f"{failure.message} {failure.advice}" if is_explained else failure.traceback or failure.message
            warn(f"{target} cannot be written: {error}\n{shown}")


def _is_recorded(file: Path, since: float) -> bool:
    existing = _read_failure(file) if since else None
    return file.exists() and (existing is None or existing.time >= since)


def create_reserve(folder: RunFolder, rank: int) -> None:
    """Reserve disk space for this rank's failure, in case the disk is full by then."""
    with suppress(OSError), os.fdopen(open_for_writing(_reserve_file(folder, rank)), "wb") as file:
        file.write(os.urandom(_RESERVED_BYTES))  # a file system may not store zeros


def is_any_running(folder: RunFolder, ranks: Iterable[int]) -> bool:
    """Whether the process of one of these ranks runs, as its reserved space shows."""
    return any(_reserve_file(folder, rank).exists() for rank in ranks)


def release_reserve(folder: RunFolder, ranks: Iterable[int]) -> None:
    """Delete the reserved files of a run that has ended."""
    for rank in ranks:
        with suppress(OSError):
            _reserve_file(folder, rank).unlink(missing_ok=True)


def _reserve_file(folder: RunFolder, rank: int) -> Path:
    return folder.log_dir / f"rank-{rank}.reserve"


def _use_reserve(folder: RunFolder, rank: int, text: str) -> bool:
    """Overwrite the reserved file with `text`; returns whether there was one."""
    reserve = _reserve_file(folder, rank)
    try:
        with reserve.open("r+b") as file:
            file.write(text.encode()[:_RESERVED_BYTES])
            file.truncate()
        reserve.replace(folder.failure_file(rank))
    except OSError:
        return False
    return True


def append_traceback(folder: RunFolder, failure: Failure) -> None:
    """Write the traceback, if there is one, to the rank's log; never raises OSError."""
    if not failure.traceback:
        return
    with suppress(OSError):
        descriptor = open_for_writing(folder.log_file(failure.rank), append=True)
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(rank_lines(failure.rank, failure.traceback, failure.time))


def read_failures(folder: RunFolder) -> list[Failure]:
    """Every recorded failure, earliest first; invalid files are skipped."""
    found = (_read_failure(path) for path in folder.log_dir.glob("rank-*.error.json"))
    return sorted((failure for failure in found if failure is not None), key=lambda failure: failure.time)


def _read_failure(path: Path) -> Failure | None:
    try:
        return validate_record(Failure, read_json(path)).made_printable()
    except (OSError, FileFault):
        return None


def record_start_failure(folder: RunFolder, error: TandemError) -> None:
    """Write log/start.error.json atomically: why no process was started; never raises OSError."""
    text = json.dumps(asdict(Failure.from_exception(error, rank=0, traceback="")), indent=1)
    temporary = folder.start_failure_file.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder.start_failure_file)


def read_start_failure(folder: RunFolder) -> Failure | None:
    """Why the last start by the window started no process; None if it did."""
    return _read_failure(folder.start_failure_file)


def root_cause(folder: RunFolder) -> Failure | None:
    """The failure that caused the others: the earliest primary one; None if none is recorded."""
    failures = read_failures(folder)
    return next((failure for failure in failures if not failure.is_secondary), failures[0] if failures else None)


def clear_failures(folder: RunFolder, ranks: Iterable[int]) -> None:
    """Delete the failures recorded by an earlier start of these ranks. Raises OSError if the folder is read-only."""
    for rank in ranks:
        folder.failure_file(rank).unlink(missing_ok=True)
