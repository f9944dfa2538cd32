"""Talking over a line: messages of a kind, signs of life in both directions, and goodbyes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from modules.run.end_signals import end_signals
from modules.run.exit_codes import INTERRUPTED, TERMINATED
from modules.run.join.line import Line, LineClosed, Message

PING_EVERY_S: Final = 2.0
SILENT_S: Final = 12.0


class Stopped(BaseException):
    """The user, or the system, asked this process to end while it waited for other machines.

    Like KeyboardInterrupt it comes in the middle of anything, so nothing that takes care of errors may keep it.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__("stopped")
        self.exit_code = exit_code


class Talk:
    """One end of a line; a thread of its own shows that this side lives, however long its work takes."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._heard_at = time.monotonic()
        self._closing = threading.Event()
        threading.Thread(target=self._ping, name="ping", daemon=True).start()

    def send(self, kind: str, /, **content: object) -> None:
        """Send a message. Raises LineClosed."""
        self._line.send({"type": kind, **content})

    def expect(self, *kinds: str) -> Message:
        """The next message of these kinds, however long the other side works on it. Raises LineClosed."""
        while True:
            message = self.listen(PING_EVERY_S)
            if message is not None and message["type"] in kinds:
                return message

    def listen(self, within_s: float) -> Message | None:
        """The next message that is no ping; None where none came. Raises LineClosed when the other side has gone."""
        message = self._line.receive(within_s)
        if message is None:
            if time.monotonic() - self._heard_at > SILENT_S:
                raise LineClosed(f"no sign of life for {SILENT_S:.0f} s")
            return None
        self._heard_at = time.monotonic()
        return None if message.get("type") == "ping" else message

    def close(self) -> None:
        """End the line."""
        self._closing.set()
        self._line.close()

    def _ping(self) -> None:
        while not self._closing.wait(PING_EVERY_S):
            with suppress(LineClosed):  # whoever listens finds out by itself
                self.send("ping")


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn Ctrl-C and the system's requests to end into `Stopped`, so that the other machines are told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(INTERRUPTED if number == signal.SIGINT else TERMINATED)

    before = {number: signal.signal(number, stop) for number in end_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
