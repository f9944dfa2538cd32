"""The line between two machines, over real sockets: only who knows the token gets through, and nothing is forged."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator

import pytest

from modules.run.join import line as join_line
from modules.run.join.line import Line, LineClosed, WrongToken, greet_guest, greet_host

TOKEN = "0123456789abcdef01234567"
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Pair]:
    """A connection on this machine: the host's end and the guest's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        guest = socket.create_connection(server.getsockname())
        host, _ = server.accept()
    with host, guest:
        yield host, guest


def both(host_side: Callable[[], object], guest_side: Callable[[], object]) -> tuple[object, object]:
    """What both sides return or raise when they run at the same time."""
    found: dict[str, object] = {}

    def run(name: str, side: Callable[[], object]) -> None:
        try:
            found[name] = side()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            found[name] = error

    thread = threading.Thread(target=run, args=("host", host_side))
    thread.start()
    run("guest", guest_side)
    thread.join(20)
    return found["host"], found["guest"]


def joined(sockets: Pair) -> tuple[Line, Line]:
    host, guest = sockets
    lines = both(lambda: greet_guest(host, TOKEN, 5), lambda: greet_host(guest, TOKEN, 5))
    assert isinstance(lines[0], Line)
    assert isinstance(lines[1], Line)
    return lines[0], lines[1]


def test_messages_arrive_in_order_and_whole(sockets: Pair) -> None:
    host, guest = joined(sockets)
    messages = [{"type": "a", "text": "ünï\ud800"}, {"type": "b", "long": ["x" * 1000] * 3000}, {"type": "c"}]
    for message in messages:
        guest.send(message)
        host.send(message)
    assert [host.receive(5) for _ in messages] == messages
    assert [guest.receive(5) for _ in messages] == messages
    assert host.receive(0.05) is None
    guest.close()
    with pytest.raises(LineClosed, match="has ended"):
        host.receive(5)


def test_a_wrong_token_is_told_to_both(sockets: Pair) -> None:
    host, guest = sockets
    found = both(lambda: greet_guest(host, TOKEN, 5), lambda: greet_host(guest, TOKEN[::-1], 5))
    assert [type(each) for each in found] == [WrongToken, WrongToken]


def test_a_host_must_know_the_token_too(sockets: Pair) -> None:
    host, guest = sockets

    def impostor() -> None:
        send(host, {"tandem": 1, "challenge": "0" * 32})
        frame(host)
        send(host, {"proof": "0" * 64})

    found = both(impostor, lambda: greet_host(guest, TOKEN, 5))
    assert isinstance(found[1], WrongToken)


def test_a_guest_cannot_answer_with_the_hosts_own_proof(sockets: Pair) -> None:
    """Opening a second connection to let the host compute the answer must not help."""
    host, guest = sockets

    def echo() -> object:
        challenge = json.loads(frame(guest))["challenge"]
        send(guest, {"challenge": challenge, "proof": join_line._answer(TOKEN, "host", challenge, challenge)})
        return json.loads(frame(guest))

    found = both(lambda: greet_guest(host, TOKEN, 5), echo)
    assert isinstance(found[0], WrongToken)
    assert found[1] == {"refused": "token"}


def test_the_token_never_travels() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as tap:
        guest = socket.create_connection(tap.getsockname())
        inner = socket.create_connection(server.getsockname())
        outer, _ = tap.accept()
        host, _ = server.accept()
    heard: list[bytes] = []

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(4096):
            heard.append(data)
            target.sendall(data)

    threads = [threading.Thread(target=pass_on, args=ends) for ends in ((outer, inner), (inner, outer))]
    with host, guest, inner, outer:
        for thread in threads:
            thread.start()
        lines = joined((host, guest))
        lines[0].send({"type": "x"})
        assert lines[1].receive(5) == {"type": "x"}
        everything = b"".join(heard)
        for form in (TOKEN.encode(), TOKEN.encode().hex().encode(), base64.b64encode(TOKEN.encode())):
            assert form not in everything
        for end in (guest, host):
            end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)


STRANGERS = {
    "a browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": b"\0" * 100,
    "a huge length": struct.pack(">I", 0xFFFFFFFF) + b"x" * 100,
    "no JSON": struct.pack(">I", 4) + b"\xff\xfe{[",
    "deep JSON": struct.pack(">I", 1000) + b"[" * 1000,
    "a list": struct.pack(">I", 2) + b"[]",
    "null": struct.pack(">I", 4) + b"null",
}


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_sent_away(sockets: Pair, name: str) -> None:
    host, guest = sockets
    guest.sendall(STRANGERS[name])
    with pytest.raises(LineClosed, match="language"):
        greet_guest(host, TOKEN, 5)


@pytest.mark.parametrize(
    "answer", [{}, {"proof": 5, "challenge": []}, {"proof": "\ud800", "challenge": "\udfff"}, {"proof": None}]
)
def test_odd_answers_are_wrong_tokens(sockets: Pair, answer: dict[str, object]) -> None:
    host, guest = sockets
    send(guest, answer)
    with pytest.raises(WrongToken):
        greet_guest(host, TOKEN, 5)


def test_who_says_nothing_is_not_waited_for(sockets: Pair) -> None:
    host, guest = sockets
    with pytest.raises(TimeoutError):
        greet_guest(host, TOKEN, 0.2)
    guest.sendall(b"\0\0")  # and then no more
    with pytest.raises(TimeoutError):
        greet_guest(host, TOKEN, 0.2)


def test_another_version_is_told(sockets: Pair) -> None:
    host, guest = sockets
    send(host, {"tandem": 99, "challenge": "0" * 32})
    with pytest.raises(LineClosed, match="another version of Tandem"):
        greet_host(guest, TOKEN, 5)


def test_a_changed_message_ends_the_line(sockets: Pair) -> None:
    host, _ = joined(sockets)
    wire = sockets[1]
    packed = zlib.compress(b'{"type": "start"}')
    wire.sendall(struct.pack(">I", 32 + len(packed)) + b"\0" * 32 + packed)
    with pytest.raises(LineClosed, match="not genuine"):
        host.receive(5)


def test_a_repeated_message_ends_the_line(sockets: Pair) -> None:
    host, guest = joined(sockets)
    guest.send({"type": "once"})
    sockets[0].settimeout(5)
    sent = sockets[0].recv(65536)
    sockets[1].sendall(sent)
    sockets[1].sendall(sent)
    assert host.receive(5) == {"type": "once"}
    with pytest.raises(LineClosed, match="not genuine"):
        host.receive(5)


def test_messages_have_an_end(sockets: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    host, guest = joined(sockets)
    sockets[1].sendall(struct.pack(">I", (64 << 20) + 1))
    with pytest.raises(LineClosed, match="too long"):
        host.receive(5)
    monkeypatch.setattr(join_line, "_MOST_UNPACKED_BYTES", 1000)
    host.send({"type": "bomb", "zeros": "0" * 100_000})
    with pytest.raises(LineClosed, match="cannot be read"):
        guest.receive(5)


@pytest.mark.parametrize("text", ["{}", '{"type": 5}', '{"a": ' + "[" * 100_000, "[]"])
def test_odd_messages_end_the_line(sockets: Pair, text: str) -> None:
    host, guest = joined(sockets)
    packed = zlib.compress(text.encode())
    proof = join_line._proof(guest._key_out, struct.pack(">Q", 0), packed)
    sockets[1].sendall(struct.pack(">I", 32 + len(packed)) + proof + packed)
    with pytest.raises(LineClosed, match="cannot be read"):
        host.receive(5)


def send(connection: socket.socket, message: object) -> None:
    data = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(data)) + data)


def frame(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(length, socket.MSG_WAITALL)
