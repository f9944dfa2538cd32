"""What the events of a start say about how it ended, in a few fields, however many events there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from modules.run.exit_codes import EXIT_CODES
from modules.run.folder.event_reader import EventReader, event_time
from modules.run.folder.events import Event

REGROUPING: Final = "regrouping"  # the last phase of a start that ends at a backup, to go on with other machines
_MAX_TEXT: Final = 16_384  # characters of a message; a file from elsewhere may hold any
_CHUNK_BYTES: Final = 64 << 10  # of events in memory at a time


@dataclass(frozen=True)
class ReportedError:
    """The content of an `error` event; `rank` is None if it is not a number."""

    rank: int | None
    host: str
    kind: str
    message: str
    advice: str


class EventSummary:
    """Updated event by event; keeps none of them."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.count = 0
        self.has_started = False
        self.phase = ""  # the latest; "training" after a step
        self.phase_since_finished = ""  # the latest since the last `finished` event
        self.exit_code: int | None = None  # of the last `finished` event, if it is one of Tandem's
        self.reason = ""  # of the last `finished` event
        self.finished_at: float | None = None  # seconds since 1970, of the last event, if that is `finished`
        self.error: ReportedError | None = None
        self.step: int | None = None  # the latest
        self.add(events)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """The summary of all events in a file; empty if there is none."""
        summary = cls()
        summary.read(EventReader(path, chunk_bytes=_CHUNK_BYTES))
        return summary

    def read(self, reader: EventReader) -> None:
        """Add everything that `reader` has not returned yet."""
        while events := reader.new():
            self.add(events)

    def add(self, events: Iterable[Event]) -> None:
        """Add events in the order of the file."""
        for event in events:
            self._add(event, str(event["type"]))

    def _add(self, event: Event, kind: str) -> None:
        self.count += 1
        self.finished_at = None
        if kind == "step" and isinstance(step := event.get("step"), int):
            self.step = step
        if kind in ("phase", "step"):
            self.phase = self.phase_since_finished = "training" if kind == "step" else _text(event, "phase")
        elif kind == "started":
            self.has_started = True
        elif kind == "error":
            rank = event.get("rank")
            texts = (_text(event, name) for name in ("host", "kind", "message", "advice"))
            self.error = ReportedError(rank if isinstance(rank, int) else None, *texts)
        elif kind == "finished":
            code = event.get("exit_code")
            self.exit_code = code if isinstance(code, int) and code in EXIT_CODES else None
            self.reason = _text(event, "reason")
            self.finished_at = event_time(event)
            self.phase_since_finished = ""


def follow_from_end(path: Path) -> EventReader:
    """A reader of what is appended from now on, with little in memory at a time."""
    return EventReader(path, from_end=True, chunk_bytes=_CHUNK_BYTES)


def _text(event: Event, name: str) -> str:
    return str(event.get(name) or "")[:_MAX_TEXT]
