"""A session between two machines, over real sockets: what arrives while nobody waits for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.run.folder.failures import Failure, record_failure
from modules.run.folder.run_folder import RunFolder
from modules.run.join import channel as channel_module
from modules.run.join import session as session_module
from modules.run.join.channel import Channel, ChannelClosed
from modules.run.join.client import while_training
from modules.run.join.session import Session

Ends = tuple[Channel, Session]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """Machine 0's channel and the session of a machine that has joined; the buffers between them hold few messages."""
    monkeypatch.setattr(channel_module, "_SEND_TIMEOUT_S", 10.0)
    monkeypatch.setattr(session_module, "PING_EVERY_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host = socket.create_connection(listener.getsockname())
        host.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        guest, _ = listener.accept()
    with host, guest:
        session = Session(Channel(guest, b"guest", b"host"))
        yield Channel(host, b"host", b"guest"), session
        session.close()


def fill(channel: Channel) -> int:
    """Send pings until the peer's buffer is full; the number of complete ones."""
    for sent in range(10_000):
        try:
            channel.send({"type": "ping"})
        except ChannelClosed:
            return sent
    raise AssertionError("the buffers never fill")


@pytest.mark.slow
def test_pings_do_not_fill_the_connection_during_training(ends: Ends, tmp_path: Path) -> None:
    host, guest = ends
    with while_training(guest, RunFolder(tmp_path), range(1, 2)):
        for _ in range(1000):
            host.send({"type": "ping"})
        host.send({"type": "start", "port": 1})
        host.send({"type": "closed", "outcome": "over"})
        time.sleep(0.7)  # more than twice its interval
    host.close()
    assert guest.receive(5) == {"type": "start", "port": 1}
    assert guest.receive(5) == {"type": "closed", "outcome": "over"}
    for _ in range(2):
        with pytest.raises(ChannelClosed, match="was closed"):
            guest.receive(5)


def test_a_message_that_is_not_sent_whole_is_the_last(ends: Ends) -> None:
    """The peer gets what came before and then the end, never a message that fails authentication."""
    host, guest = ends
    host._connection.settimeout(0.3)
    sent = fill(host)
    with pytest.raises(ChannelClosed):
        host.send({"type": "start"})
    guest.send("leave")
    assert host.receive(5) == {"type": "leave"}, "the other direction is whole"
    with pytest.raises(ChannelClosed, match="was closed"):
        assert not any(guest.receive(5) for _ in range(sent + 2))


def test_silence_counts_from_the_last_arrival(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was busy or suspended has only to read; half of a large message is no silence either."""
    host, guest = ends
    monkeypatch.setattr(session_module, "TIMEOUT_S", 0.5)
    host.send({"type": "ping"})
    time.sleep(0.6)
    assert guest.receive(0) is None
    host._connection.sendall(b"\0")
    time.sleep(0.6)
    assert guest.receive(0) is None
    time.sleep(0.6)
    with pytest.raises(ChannelClosed, match="no message for"):
        guest.receive(0.1)


def test_machine_0_is_lost_if_it_closes_or_is_silent(ends: Ends) -> None:
    """While nobody receives; a process that was suspended for long finds pings, so machine 0 was not silent."""
    host, guest = ends
    for has_arrived in (False, True):
        guest._channel.heard_at -= session_module.TIMEOUT_S + 1
        if has_arrived:
            host.send({"type": "ping"})
        guest.drain()
        assert guest.is_lost is not has_arrived
    host.send({"type": "closed", "outcome": "over"})
    host.close()
    guest.drain()
    assert guest.is_lost
    assert guest.receive(5) == {"type": "closed", "outcome": "over"}


def test_only_new_failures_are_forwarded(ends: Ends, tmp_path: Path) -> None:
    """Those of the previous start lie there until the supervisor clears them; machine 0 would end the new one."""
    host, guest = ends
    folder = RunFolder(tmp_path)
    record_failure(folder, Failure(1, "beta", "bug", "of the previous start"))
    stops = [("", "")]
    with while_training(guest, folder, range(1, 2), lambda: stops[-1]):
        assert host.receive(0.7) is None
        stops.append(("interrupted", "Ctrl-C"))
        assert host.receive(10) == {"type": "stopping", "by": "Ctrl-C", "reason": "interrupted"}, "once"
        record_failure(folder, Failure(1, "beta", "bug", "of this start"))
        record_failure(folder, Failure(0, "zeus", "bug", "of another machine"))
        found = host.receive(10)
        assert found is not None
        assert (found["type"], found["message"]) == ("failure", "of this start")
        assert host.receive(0.7) is None
