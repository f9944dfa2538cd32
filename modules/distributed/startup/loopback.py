"""torch's store on the loopback interface: for the processes of one machine, nobody outside must reach it."""

from __future__ import annotations

import socket
import sys
from datetime import timedelta

from modules.machine import is_loopback_name
from modules.torch_compat import TCPStore

HAS_LIBUV = sys.platform != "win32"  # PyTorch's builds for Windows are made without it


def host_store(host: str, port: int, timeout_s: float = 300.0) -> TCPStore:
    """A store that this process hosts at `port`: on the loopback interface alone if `host` is there, else on all.

    torch itself always listens on all interfaces. Raises OSError or torch's DistNetworkError if the port is in use.
    """
    listener = _listen(host, port) if is_loopback_name(host) and sys.platform != "win32" else None
    return TCPStore(
        host if listener is None else listener.getsockname()[0],
        port if listener is None else listener.getsockname()[1],
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=None if listener is None else listener.detach(),  # torch closes it
        use_libuv=HAS_LIBUV,
    )


def _listen(host: str, port: int) -> socket.socket:
    address = host.strip("[]")
    is_ipv6 = ":" in address
    return socket.create_server(
        (address if is_ipv6 or address != "localhost" else "127.0.0.1", port),
        family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
        backlog=1024,
    )
