"""Free TCP ports of this machine."""

import errno
import os
import socket

_TRIES = 100
_ANSWERS_WITHIN_S = 5.0
_LAST_PORT = 65535


def find_free_port(start: int) -> int:
    """The first free TCP port at or above `start`. Raises OSError if 100 ports in a row are taken."""
    candidates = range(start, min(start + _TRIES, _LAST_PORT + 1))
    for port in candidates:
        if port_is_free(port):
            return port
    raise OSError(f"no free TCP port between {start} and {candidates.stop - 1}")


def port_is_free(port: int) -> bool:
    """Whether a server can listen on `port` on all interfaces of this machine."""
    if not 0 < port <= _LAST_PORT:
        return False
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
        return error.strerror or str(error)


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
