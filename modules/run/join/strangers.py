"""Connections whose other side has not shown the token yet: few at once, and fewer of one address."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final

_MOST: Final = 64
_MOST_OF_ONE_ADDRESS: Final = 8


class Strangers:
    """Where a new one would be too many the oldest has to go, so that a flood of them keeps nobody out."""

    def __init__(self) -> None:
        self._addresses: dict[socket.socket, str] = {}  # the oldest first
        self._lock = threading.Lock()

    def add(self, connection: socket.socket, address: str) -> None:
        """Note a new one; the oldest, of the same address if that has many, may be ended for it."""
        with self._lock:
            same = [each for each, its in self._addresses.items() if its == address]
            crowd = same if len(same) >= _MOST_OF_ONE_ADDRESS else list(self._addresses)
            if crowd is same or len(crowd) >= _MOST:
                del self._addresses[crowd[0]]
                with suppress(OSError):  # its thread sees the end and closes it
                    crowd[0].shutdown(socket.SHUT_RDWR)
            self._addresses[connection] = address

    def remove(self, connection: socket.socket) -> None:
        """It is none any more: it has shown the token, or has gone."""
        with self._lock:
            self._addresses.pop(connection, None)
