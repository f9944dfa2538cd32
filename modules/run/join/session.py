"""A session over a channel: typed messages, and pings in both directions."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from modules.run.exit_codes import INTERRUPTED, TERMINATED
from modules.run.join.channel import Channel, ChannelClosed, Message
from modules.run.supervise.signals import termination_signals

PING_EVERY_S: Final = 2.0
TIMEOUT_S: Final = 12.0


class StopRequested(BaseException):
    """The user or the system asked this process to stop while it waited for other machines.

    A BaseException like KeyboardInterrupt, as it can be raised anywhere and must not be handled as an error.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__("stopped")
        self.exit_code = exit_code


class Session:
    """One end of a channel; a separate thread sends pings, however long the work takes."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._received_at = time.monotonic()
        self._closing = threading.Event()
        threading.Thread(target=self._ping, name="ping", daemon=True).start()

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
        message = self._channel.receive(within_s)
        if message is None:
            if time.monotonic() - self._received_at > TIMEOUT_S:
                raise ChannelClosed(f"no message for {TIMEOUT_S:.0f} s")
            return None
        self._received_at = time.monotonic()
        return None if message.get("type") == "ping" else message

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
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise StopRequested(INTERRUPTED if number == signal.SIGINT else TERMINATED)

    before = {number: signal.signal(number, stop) for number in termination_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
