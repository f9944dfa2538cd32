"""Why ranks failed: one JSON file a rank, and the one failure that caused the others."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from modules.machine import hostname
from modules.run.explanations import SECONDARY_KINDS, explain_exception
from modules.run.rank_log import rank_lines
from modules.run.run_folder import RunFolder

# More than the longest traceback.
_RESERVED_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Failure:
    """One rank's failure; `time` in seconds since 1970."""

    rank: int
    host: str
    kind: str
    message: str
    advice: str = ""
    traceback: str = ""
    time: float = field(default_factory=time.time)

    @classmethod
    def of(cls, error: BaseException, *, rank: int, traceback: str, training: bool = False) -> Self:
        """The failure of this process by an exception; `training` says that the first step was reached."""
        explanation = explain_exception(error, training=training)
        return cls(rank, hostname(), explanation.kind, explanation.message, explanation.advice, traceback)

    def event(self) -> dict[str, object]:
        """The fields of the `error` event."""
        return {name: getattr(self, name) for name in ("rank", "host", "kind", "message", "advice")}

    @property
    def is_echo(self) -> bool:
        """Whether another rank's failure most likely caused this one."""
        return self.kind in SECONDARY_KINDS


def record_failure(folder: RunFolder, failure: Failure, *, unless_there: bool = False) -> None:
    """Write log/rank-N.error.json atomically, the traceback into the rank's log; never raises OSError.

    `unless_there` keeps what somebody has recorded of this rank before.
    """
    target = folder.failure_file(failure.rank)
    if unless_there and target.exists():
        return
    text = json.dumps(asdict(failure), indent=1)
    with suppress(OSError):
        folder.log_dir.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        _append_traceback(folder, failure)
    # Other ranks may write the same at the same time.
    temporary = target.with_suffix(f".{os.getpid()}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        # The failure may well be a full disk: then there is the reserve, and at last standard error.
        with suppress(OSError):
            temporary.unlink()
        if not _use_reserve(folder, failure.rank, text):
            _say_instead(f"{target} cannot be written: {error}\n{failure.traceback or failure.message}")


def reserve_room(folder: RunFolder, rank: int) -> None:
    """Keep room on the disk for this rank's last words, in case it will be full by then."""
    with suppress(OSError):
        _reserve(folder, rank).write_bytes(os.urandom(_RESERVED_BYTES))  # zeros might be kept as nothing


def give_room_back(folder: RunFolder, ranks: Iterable[int]) -> None:
    """The run has ended, and what had to be said was said."""
    for rank in ranks:
        with suppress(OSError):
            _reserve(folder, rank).unlink(missing_ok=True)


def _reserve(folder: RunFolder, rank: int) -> Path:
    return folder.log_dir / f"rank-{rank}.reserve"


def _use_reserve(folder: RunFolder, rank: int, text: str) -> bool:
    """Write over the bytes that are there already; whether there were any."""
    reserve = _reserve(folder, rank)
    try:
        with reserve.open("r+b") as file:
            file.write(text.encode()[:_RESERVED_BYTES])
            file.truncate()
        reserve.replace(folder.failure_file(rank))
    except OSError:
        return False
    return True


def _append_traceback(folder: RunFolder, failure: Failure) -> None:
    if failure.traceback:
        with folder.log_file(failure.rank).open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(rank_lines(failure.rank, failure.traceback, failure.time))


def _say_instead(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr)


def read_failures(folder: RunFolder) -> list[Failure]:
    """Every recorded failure, earliest first; a file that is not a failure is passed over."""
    found = []
    for path in folder.log_dir.glob("rank-*.error.json"):
        with suppress(OSError, ValueError, TypeError, KeyError):
            data = json.loads(path.read_text(encoding="utf-8"))
            found.append(
                Failure(
                    rank=int(data["rank"]),
                    host=str(data["host"]),
                    kind=str(data["kind"]),
                    message=str(data["message"]),
                    advice=str(data.get("advice", "")),
                    traceback=str(data.get("traceback", "")),
                    time=float(data["time"]),
                )
            )
    return sorted(found, key=lambda failure: failure.time)


def root_cause(folder: RunFolder) -> Failure | None:
    """The failure that caused the others: the earliest that is no echo itself; None if none is recorded."""
    failures = read_failures(folder)
    return next((failure for failure in failures if not failure.is_echo), failures[0] if failures else None)


def forget_failures(folder: RunFolder, ranks: Iterable[int]) -> None:
    """Remove what an earlier start of these ranks left behind; OSError in a read-only folder."""
    for rank in ranks:
        folder.failure_file(rank).unlink(missing_ok=True)
