"""A session over a channel: typed messages, and pings in both directions."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from modules.run.exit_codes import INTERRUPTED, TERMINATED
from modules.run.join.channel import Channel, ChannelClosed, Message
from modules.run.supervise.signals import describe_stop, signals_handled, termination_signals

PING_EVERY_S: Final = 2.0
TIMEOUT_S: Final = 12.0
# What `drain` takes at once and keeps, so that a peer that never stops sending takes neither time nor memory.
_MOST_DRAINED: Final = 10_000
_MOST_KEPT: Final = 8


class ChannelSilent(ChannelClosed):
    """Nothing comes any more: the other machine, its network or this one's has failed."""


class StopRequested(BaseException):
    """The user or the system asked this process to stop while it waited for other machines.

    A BaseException like KeyboardInterrupt, as it can be raised anywhere and must not be handled as an error.
    """

    def __init__(self, exit_code: int, by: str = "a request") -> None:
        """`by` is the signal in words."""
        super().__init__("stopped")
        self.exit_code = exit_code
        self.by = by


class Session:
    """One end of a channel; a separate thread sends pings, however long the work takes.

    Only one thread at a time may receive: by `expect`, `receive` or `drain`.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._kept: deque[Message] = deque()
        self._end: ChannelClosed | None = None  # as found by `drain`
        self._is_silent = False  # as found by `drain`
        self._closing = threading.Event()
        threading.Thread(target=self._ping, name="ping", daemon=True).start()

    @property
    def own_address(self) -> str:
        """The address of this machine at which the other one has reached it; empty once the session is closed."""
        return self._channel.own_address

    def send(self, kind: str, /, **content: object) -> None:
        """Send a message. Raises ChannelClosed."""
        self._channel.send({"type": kind, **content})

    def expect(self, *kinds: str) -> Message:
        """The next message of these kinds; waits as long as pings arrive. Raises ChannelClosed."""
        while True:
            message = self.receive(PING_EVERY_S)
            if message is not None and message["type"] in kinds:
                return message

    def receive(self, within_s: float) -> Message | None:
        """The next message other than a ping; None if there was none in time. Raises ChannelClosed."""
        if self._kept:
            return self._kept.popleft()
        if self._end is not None:
            raise self._end
        message = self._channel.receive(within_s)
        if message is None and time.monotonic() - self._channel.heard_at > TIMEOUT_S:
            raise ChannelSilent(f"no message for {TIMEOUT_S:.0f} s")
        return None if message is None or message["type"] == "ping" else message

    def drain(self) -> None:
        """Read what has arrived, without waiting; `receive` returns it later, and raises if the channel has closed.

        Called often while nobody receives, as the peer's pings would fill the connection within hours.
        """
        try:
            for _ in range(_MOST_DRAINED):
                if self._end is not None or len(self._kept) >= _MOST_KEPT:
                    return
                message = self._channel.receive(0)
                if message is None:
                    return
                if message["type"] != "ping":
                    self._kept.append(message)
        except ChannelClosed as end:
            self._end = end
        finally:
            # only now: a process that was suspended finds pings here
            self._is_silent = time.monotonic() - self._channel.heard_at > TIMEOUT_S

    @property
    def is_lost(self) -> bool:
        """Whether `drain` has found the channel closed, or has heard nothing for long; any thread may ask."""
        return self._end is not None or self._is_silent

    def close(self) -> None:
        """Close the channel."""
        self._closing.set()
        self._channel.close()

    def _ping(self) -> None:
        while not self._closing.wait(PING_EVERY_S):
            with suppress(ChannelClosed):  # `receive` reports it
                self.send("ping")


@contextmanager
def raise_on_stop_signals() -> Iterator[None]:
    """Raise StopRequested for Ctrl-C and termination signals, so that the other machines can be notified."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise StopRequested(INTERRUPTED if number == signal.SIGINT else TERMINATED, describe_stop(number))

    with signals_handled(termination_signals(), stop):
        yield
