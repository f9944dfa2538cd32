"""Free TCP ports of this machine, and those that are kept for a server that listens later."""

import errno
import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

_TRIES = 100
_ANSWERS_WITHIN_S = 5.0
_LAST_PORT = 65535


def find_free_port(start: int, is_free: Callable[[int], bool] | None = None) -> int:
    """The first port at or above `start` that `is_free` (default: `port_is_free`).

    Raises OSError if 100 ports in a row are taken.
    """
    is_free = is_free or port_is_free
    candidates = range(start, min(start + _TRIES, _LAST_PORT + 1))
    for port in candidates:
        if is_free(port):
            return port
    raise OSError(f"no free TCP port between {start} and {candidates.stop - 1}")


def port_is_free(port: int) -> bool:
    """Whether a server can listen on `port` on all interfaces of this machine, and no run has reserved it."""
    with PortReservations() as reservations:
        return reservations.take(port)


class PortReservations:
    """TCP ports that this process keeps from other runs of Tandem until `close`, or until it ends.

    A run chooses its port seconds or, while machines join, minutes before its store listens there; until then nothing
    else shows that it is taken. The reservation is a UDP socket of the same number on the loopback interface: it takes
    nothing from a TCP server, all users see it, and the system removes it with the process.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self, port: int) -> bool:
        """Reserve a port, unless it is reserved here already; whether a server of this run can listen on it."""
        if not 0 < port <= _LAST_PORT:
            return False
        if port in self._held:
            return _is_unused(port)
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            holder.bind(("127.0.0.1", port))
        except OSError as error:
            holder.close()
            return not _is_taken(error) and _is_unused(port)  # without a loopback interface there are no reservations
        if not _is_unused(port):
            holder.close()
            return False
        self._held[port] = holder
        return True

    def close(self) -> None:
        """Reserve them no longer."""
        for holder in self._held.values():
            holder.close()
        self._held.clear()


def _is_unused(port: int) -> bool:
    return _can_listen(socket.AF_INET, port) and (not socket.has_ipv6 or _can_listen(socket.AF_INET6, port))


def loopback_fault() -> str:
    """Why a process cannot reach another one on this machine at 127.0.0.1; empty if it can."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), _ANSWERS_WITHIN_S),
        ):
            return ""
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)  # Python adds its own words to strerror


def _can_listen(family: socket.AddressFamily, port: int) -> bool:
    try:
        server = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        # Without IPv6, nothing can hold the port there.
        return family == socket.AF_INET6
    with server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if os.name == "posix":
            # torch's store can reuse a port in TIME_WAIT, whose run just ended, so it counts as free.
            # On Windows the same option would let two servers share a port.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
            server.listen(1)
        except OSError as error:
            return family == socket.AF_INET6 and not _is_taken(error)
    return True


def _is_taken(error: OSError) -> bool:
    return error.errno in {errno.EADDRINUSE, errno.EACCES}
