"""Streams and events of the pretended GPU: its work is done at once, and counts as done once somebody waited for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

import torch

from tests.fake_cuda.races import Races
from tests.fake_cuda.watch import Wait, Watch, line

STREAMS_PER_DEVICE = 1000  # as in device.cpp; a stream's number is device * STREAMS_PER_DEVICE + id


@dataclass(frozen=True)
class Pending:
    """What happens when the host has waited for the work up to `number` of a stream."""

    stream: int
    number: int
    complete: Callable[[], None]


class Queue:
    """The device's work, by stream, as far as the host has waited for it."""

    def __init__(self, extension: ModuleType, watch: Watch) -> None:
        self.extension = extension
        self.watch = watch
        self.races: Races | None = None
        self.sync_mode: int | str = "default"  # of torch.cuda.set_sync_debug_mode
        self.left_out = ("", "")  # for mutants: the waits of this file and function do nothing
        self.done: Counter[int] = Counter()
        self.pending: list[Pending] = []

    def issued(self, stream: int) -> int:
        """The number of the newest work of a stream."""
        return int(self.extension.issued().get(stream, 0))

    def later(self, stream: int, complete: Callable[[], None]) -> None:
        """Call `complete` once the host has waited for what `stream` has to do now."""
        self.pending.append(Pending(stream, self.issued(stream), complete))

    def wait(self, kind: str, stream: int | None, number: int | None = None) -> None:
        """The host waits for a stream (None: for all), up to a number (None: for all that was issued)."""
        if self.is_left_out():
            return
        behind = 0 if stream is None or number is None else self.issued(stream) - number
        self.watch.waits.append(Wait(kind, line(), behind))
        self.complete(stream, number)

    def is_left_out(self) -> bool:
        """Whether the program under test is one without the wait that it is about to make."""
        file, function = self.left_out
        return bool(file) and f"/{file}:" in (at := line()) and at.endswith(f" {function}")

    def complete(self, stream: int | None = None, number: int | None = None) -> None:
        """It has waited."""
        for each, newest in self.extension.issued().items():
            if stream not in (None, each):
                continue
            self.done[each] = max(self.done[each], newest if number is None else number)
            arrived = [entry for entry in self.pending if entry.stream == each and entry.number <= self.done[each]]
            for entry in arrived:
                self.pending.remove(entry)
                entry.complete()

    def device_index(self, device: Any = None) -> int:
        """Of what torch.cuda's functions take as a device."""
        index = device if isinstance(device, int) else None if device is None else torch.device(device).index
        return int(self.extension.current_device()) if index is None or index < 0 else index

    def stream_types(self) -> tuple[type, type]:
        """torch.cuda.Stream and torch.cuda.Event of this queue."""
        queue = self
        return (
            type("Stream", (Stream,), {"queue": queue}),
            type("Event", (Event,), {"queue": queue}),
        )


class Stream:
    """torch.cuda.Stream."""

    queue: Queue
    _newest = 0

    def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: object) -> None:
        self.device_index = self.queue.device_index(device)
        self.device = torch.device("cuda", self.device_index)
        self.priority = priority
        is_new = stream_id is None
        if stream_id is None:
            Stream._newest += 1
            stream_id = Stream._newest
        self.stream_id = self.cuda_stream = stream_id
        if is_new and self.queue.races is not None:
            self.queue.races.create_stream(self.number)

    @property
    def number(self) -> int:
        """Unique among all devices."""
        return self.device_index * STREAMS_PER_DEVICE + self.stream_id

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        if event.stream is not None and self.queue.races is not None and not self.queue.is_left_out():
            self.queue.races.event_wait(id(event), self.number)

    def record_event(self, event: Event | None = None) -> Event:
        made: Event = torch.cuda.Event() if event is None else event  # type: ignore[assignment]
        made.record(self)
        return made

    def synchronize(self) -> None:
        self.queue.wait("stream.synchronize", self.number)

    def query(self) -> bool:
        return self.queue.done[self.number] >= self.queue.issued(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return self.number


class Event:
    """torch.cuda.Event; its time can be read with `enable_timing`, and once the host has waited for it."""

    queue: Queue

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self.stream: int | None = None
        self.number = 0
        self.at = 0.0
        if self.queue.races is not None:
            self.queue.races.event_creation(id(self))

    def record(self, stream: Stream | None = None) -> None:
        recorded: Any = torch.cuda.current_stream() if stream is None else stream
        self.stream, self.at = recorded.number, time.perf_counter()
        self.number = self.queue.extension.issue(self.stream)
        if self.queue.races is not None:
            self.queue.races.event_record(id(self), self.stream)

    def wait(self, stream: Stream | None = None) -> None:
        waiting: Any = torch.cuda.current_stream() if stream is None else stream
        waiting.wait_event(self)

    def synchronize(self) -> None:
        if self.stream is not None and not self.query():
            self.queue.wait("event.synchronize", self.stream, self.number)
        if self.stream is not None and self.queue.races is not None and not self.queue.is_left_out():
            self.queue.races.event_synchronization(id(self))

    def query(self) -> bool:
        return self.stream is None or self.queue.done[self.stream] >= self.number

    def elapsed_time(self, other: Event) -> float:
        if not (self.enable_timing and other.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.stream is None or other.stream is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and other.query()):
            raise RuntimeError("CUDA error: device not ready")
        return 1000 * (other.at - self.at)


class StreamContext:
    """torch.cuda.stream."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self.before = 0

    def __enter__(self) -> None:
        if self.stream is not None:
            extension = self.stream.queue.extension
            self.before = extension.current_stream(self.stream.device_index)
            extension.set_stream(self.stream.device_index, self.stream.stream_id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            self.stream.queue.extension.set_stream(self.stream.device_index, self.before)
