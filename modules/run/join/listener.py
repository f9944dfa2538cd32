"""The port on which machines join: accepts connections, and passes on those that prove the token."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from modules.machine import PortReservations
from modules.run.join.channel import ChannelClosed, WrongToken, authenticate_client, listen
from modules.run.join.members import JoinError
from modules.run.join.session import Session

_AUTHENTICATION_TIMEOUT_S: Final = 5.0
_PORTS_TRIED: Final = 100
_MAX_REJECTION_LINES: Final = 50
_MAX: Final = 64
_MAX_PER_ADDRESS: Final = 8


class Listener:
    """Accepts connections from construction until `close`, each in a thread of its own."""

    def __init__(
        self, first_port: int, token: str, serve: Callable[[Session, str], None], report: Callable[[str], None]
    ) -> None:
        """Listen at `first_port` or the next free one. Raises JoinError if there is none.

        `serve` gets each authenticated session and its address, and may raise ChannelClosed; `report` is told of wrong
        tokens.
        """
        self._token = token
        self._serve = serve
        self._report = report
        self._is_closed = False
        self._rejections: set[str] = set()
        self._unauthenticated = UnauthenticatedConnections()
        self._server = _open_server(first_port)
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept_connections, name="join", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._is_closed = True
        with suppress(OSError):  # wakes the accepting thread, which closing does not
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept_connections(self) -> None:
        while True:
            try:
                connection, address = self._server.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # e.g. too many open files: wait until some connections have closed
                continue
            name = str(address[0]).removeprefix("::ffff:")
            self._unauthenticated.add(connection, name)
            client = threading.Thread(
                target=self._handle_connection, args=(connection, name), name="client", daemon=True
            )
            try:
                client.start()
            except RuntimeError:  # the system allows no more threads: until some have ended, connections are closed
                self._unauthenticated.remove(connection)
                connection.close()

    def _handle_connection(self, connection: socket.socket, address: str) -> None:
        """Handle one connection from authentication to its end."""
        try:
            channel = authenticate_client(connection, self._token, _AUTHENTICATION_TIMEOUT_S)
        except WrongToken:
            self._report_once(
                f"A connection from {address} was rejected: wrong token. The line of an earlier start joins no later "
                "one; use the line of this start there."
            )
            connection.close()
            return
        except (ChannelClosed, TimeoutError, OSError):
            connection.close()
            return
        finally:
            self._unauthenticated.remove(connection)
        session = Session(channel)
        try:
            self._serve(session, address)
        except ChannelClosed:
            return  # disconnected before it was a member
        finally:
            session.close()

    def _report_once(self, text: str) -> None:
        if text not in self._rejections and len(self._rejections) < _MAX_REJECTION_LINES:
            self._rejections.add(text)
            self._report(text)


def _open_server(first: int) -> socket.socket:
    for port in range(first, min(first + _PORTS_TRIED, 65_536)):
        with suppress(OSError), PortReservations() as reservations:
            if reservations.take(port):  # no run has planned to use it
                return listen(port)
    raise JoinError(
        f"no port from {first} to {first + _PORTS_TRIED - 1} is free for machines to join",
        "Set initial_port to another number",
    )


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
