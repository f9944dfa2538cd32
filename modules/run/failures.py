"""Why ranks failed: one JSON file a rank, and the one failure that caused the others."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Self

from modules.machine import hostname
from modules.run.explanations import SECONDARY_KINDS, explain_exception
from modules.run.rank_log import rank_lines
from modules.run.run_folder import RunFolder


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


def record_failure(folder: RunFolder, failure: Failure) -> None:
    """Write log/rank-N.error.json atomically, the traceback into the rank's log; never raises OSError."""
    target = folder.failure_file(failure.rank)
    try:
        folder.log_dir.mkdir(parents=True, exist_ok=True)
        if failure.traceback:
            with folder.log_file(failure.rank).open("a", encoding="utf-8", errors="backslashreplace") as log:
                log.write(rank_lines(failure.rank, failure.traceback, failure.time))
        temporary = target.with_suffix(".partial")
        temporary.write_text(json.dumps(asdict(failure), indent=1), encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        # The failure may well be a full disk; standard error is what remains.
        with suppress(OSError, ValueError):
            print(
                f"{target} cannot be written: {error}\n{failure.traceback or failure.message}",
                file=sys.stderr,
            )


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
