"""What this rank publishes about itself: a heartbeat every second and, on demand, a full snapshot."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from modules import ROOT
from modules.distributed.health import flight_recorder
from modules.distributed.health.diagnosis import IDLE_AFTER_S, RankSnapshot
from modules.distributed.startup.member import Member

_LIBRARIES = tuple({form for path in sysconfig.get_paths().values() for form in (path, str(Path(path).resolve()))})
_COMPONENTS = {
    "/torch/utils/data/": "the loader (waiting for its worker processes)",
    "/modules/data/loading/loader.py": "the loader",
    "/modules/data/cache/reader.py": "the loader",
    "/modules/data/": "the data",
    "/modules/checkpoint/": "a backup",
    "/modules/diffusion/hub/model.py": "the download of the base model",
}


@dataclass(frozen=True)
class Heartbeat:
    """A sequence number, and for how long the training thread has waited for other ranks or used no CPU at all."""

    number: int
    waits_s: float = 0.0
    has_left: bool = False
    frozen_s: float = 0.0


@dataclass(frozen=True)
class _Wait:
    """A wait through the store, which may last for hours."""

    name: str
    ranks: tuple[int, ...]
    since: float


class SelfMonitor:
    """Observes the thread that makes it, which trains, from the watchdog's; that thread calls only `waiting`."""

    def __init__(self, own: Member) -> None:
        self._own = own
        self._thread = threading.get_ident()
        self._number = 0
        self._wait: _Wait | None = None
        self._fingerprint, self._moved_at = "", time.monotonic()
        self._cpu_s, self._frozen_since = 0.0, time.monotonic()
        self._collectives: tuple[str, list[flight_recorder.Collective]] = "", []

    @contextmanager
    def waiting(self, name: str, ranks: Sequence[int]) -> Iterator[None]:
        """Inside the block this rank waits for `ranks`, which are doing `name`."""
        before, self._wait = self._wait, _Wait(name, tuple(ranks), time.monotonic())
        try:
            yield
        finally:
            self._wait = before

    @property
    def waits_for(self) -> str:
        """What this rank waits for through the store; empty if it does not."""
        return self._wait.name if self._wait is not None else ""

    def heartbeat(self, *, has_left: bool = False) -> Heartbeat:
        """The next heartbeat."""
        self._number += 1
        idle_s, frozen_s = self._idle_s(), self._frozen_s()
        if (wait := self._wait) is not None:
            return Heartbeat(self._number, time.monotonic() - wait.since, has_left)
        is_blocked = idle_s >= IDLE_AFTER_S and any(each.pending for each in self._last_collectives())
        return Heartbeat(self._number, idle_s if is_blocked else 0.0, has_left, frozen_s)

    def snapshot(self) -> RankSnapshot:
        """Everything that a diagnosis may need."""
        stack, wait = stack_of(self._thread), self._wait
        return RankSnapshot(
            rank=self._own.rank,
            host=self._own.host,
            heartbeat=self._number,
            location=stack.location,
            component=stack.component,
            idle_s=time.monotonic() - (self._moved_at if wait is None else wait.since),
            barrier="" if wait is None else wait.name,
            waits_for=() if wait is None else wait.ranks,
            collectives=tuple(self._last_collectives()),
            stack=stack.text,
        )

    def _last_collectives(self) -> list[flight_recorder.Collective]:
        """Read again only after a change: dumping a full recorder takes a quarter of a second."""
        counters = flight_recorder.counters()
        if counters != self._collectives[0]:
            self._collectives = counters, flight_recorder.last_collectives()
        return self._collectives[1]

    def _idle_s(self) -> float:
        """How long the thread has neither moved nor started or completed a collective."""
        fingerprint = f"{fingerprint_of(self._thread)} {flight_recorder.counters()}"
        if fingerprint != self._fingerprint:
            self._fingerprint, self._moved_at = fingerprint, time.monotonic()
        return time.monotonic() - self._moved_at

    def _frozen_s(self) -> float:
        """How long the thread has used no CPU time at all; even hours of work use some now and then."""
        cpu_s = cpu_s_of(self._thread)
        if cpu_s != self._cpu_s:
            self._cpu_s, self._frozen_since = cpu_s, time.monotonic()
        return time.monotonic() - self._frozen_since


class Stack(NamedTuple):
    """The call stack of a thread."""

    frames: list[traceback.FrameSummary]  # outermost first

    @property
    def location(self) -> str:
        """The innermost line outside of libraries, such as "modules/data/loading/loader.py:152 (_received)"."""
        for frame in reversed(self.frames):
            if not frame.filename.startswith(("<", *_LIBRARIES)):
                path = Path(frame.filename)
                file = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else frame.filename
                return f"{file}:{frame.lineno} ({frame.name})"
        return ""

    @property
    def component(self) -> str:
        """The part of the program that is running, such as "the loader"; empty for most."""
        for frame in reversed(self.frames):
            for path, name in _COMPONENTS.items():
                if path in frame.filename.replace("\\", "/"):
                    return name
        return ""

    @property
    def text(self) -> str:
        """Formatted like a traceback."""
        return "".join(traceback.format_list(self.frames))


def stack_of(thread: int) -> Stack:
    """The current stack of a thread, by its identifier."""
    frame = sys._current_frames().get(thread)
    return Stack([] if frame is None else list(traceback.extract_stack(frame)))


def fingerprint_of(thread: int) -> str:
    """A text that changes whenever a thread moves; takes microseconds."""
    found, frame = [], sys._current_frames().get(thread)
    while frame is not None:
        found.append(f"{id(frame.f_code)}.{frame.f_lasti}")
        frame = frame.f_back
    return "/".join(found)


def cpu_s_of(thread: int) -> float:
    """CPU time of a thread in seconds; constant while it does nothing at all.

    On systems that do not report it (Windows, macOS) it keeps growing.
    """
    if sys.platform == "win32" or not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))
