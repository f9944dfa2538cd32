"""Connections whose peer has not proved the token yet: limited in total and per address."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final

_MAX: Final = 64
_MAX_PER_ADDRESS: Final = 8


class UnauthenticatedConnections:
    """Closes the oldest connection when there are too many, so that a flood of them locks nobody out."""

    def __init__(self) -> None:
        self._addresses: dict[socket.socket, str] = {}  # oldest first
        self._lock = threading.Lock()

    def add(self, connection: socket.socket, address: str) -> None:
        """Add a connection; closes the oldest if there are too many, of the same address if that has too many."""
        with self._lock:
            same = [each for each, known in self._addresses.items() if known == address]
            candidates = same if len(same) >= _MAX_PER_ADDRESS else list(self._addresses)
            if candidates is same or len(candidates) >= _MAX:
                del self._addresses[candidates[0]]
                with suppress(OSError):  # its thread notices and closes it
                    candidates[0].shutdown(socket.SHUT_RDWR)
            self._addresses[connection] = address

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that has authenticated or closed."""
        with self._lock:
            self._addresses.pop(connection, None)
