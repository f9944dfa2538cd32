"""Connections that have not proved that they know the token."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from modules.run.join.listener import UnauthenticatedConnections


def test_connection_limit_per_address() -> None:
    connections = UnauthenticatedConnections()
    with ExitStack() as ends:
        pairs = [[ends.enter_context(end) for end in socket.socketpair()] for _ in range(12)]
        for number, (_, ours) in enumerate(pairs):
            connections.add(ours, "10.0.0.2" if number == 0 else "10.0.0.3")
        for number, (theirs, _) in enumerate(pairs):
            theirs.settimeout(0.0)
            if 1 <= number <= 3:
                assert theirs.recv(1) == b"", "the oldest of the crowded address have ended"
            else:
                with pytest.raises(BlockingIOError):
                    theirs.recv(1)
