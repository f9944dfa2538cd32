"""The join channel over real sockets: only a peer that knows the token gets through, and nothing can be forged."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator

import pytest

from modules.run.join import channel as channel_module
from modules.run.join.channel import Channel, ChannelClosed, WrongToken, authenticate_client, authenticate_to_server

TOKEN = "0123456789abcdef01234567"
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Pair]:
    """A connection on this machine: the server's end and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with server, client:
        yield server, client


def both(server_side: Callable[[], object], client_side: Callable[[], object]) -> tuple[object, object]:
    """The results or exceptions of both sides, run at the same time."""
    found: dict[str, object] = {}

    def run(name: str, side: Callable[[], object]) -> None:
        try:
            found[name] = side()
        except Exception as error:  # noqa: BLE001 - checked by the test
            found[name] = error

    thread = threading.Thread(target=run, args=("server", server_side))
    thread.start()
    run("client", client_side)
    thread.join(20)
    return found["server"], found["client"]


def joined(sockets: Pair) -> tuple[Channel, Channel]:
    server, client = sockets
    lines = both(lambda: authenticate_client(server, TOKEN, 5), lambda: authenticate_to_server(client, TOKEN, 5))
    assert isinstance(lines[0], Channel)
    assert isinstance(lines[1], Channel)
    return lines[0], lines[1]


def test_messages_arrive_complete_and_in_order(sockets: Pair) -> None:
    server, client = joined(sockets)
    messages: list[dict[str, object]] = [
        {"type": "a", "text": "ünï\ud800"},
        {"type": "b", "long": ["x" * 1000] * 3000},
        {"type": "c"},
    ]
    for message in messages:
        client.send(message)
        server.send(message)
    assert [server.receive(5) for _ in messages] == messages
    assert [client.receive(5) for _ in messages] == messages
    assert server.receive(0.05) is None
    client.close()
    with pytest.raises(ChannelClosed, match="was closed"):
        server.receive(5)


def test_both_sides_detect_a_wrong_token(sockets: Pair) -> None:
    server, client = sockets
    found = both(lambda: authenticate_client(server, TOKEN, 5), lambda: authenticate_to_server(client, TOKEN[::-1], 5))
    assert [type(each) for each in found] == [WrongToken, WrongToken]


def test_server_must_know_the_token_too(sockets: Pair) -> None:
    server, client = sockets

    def impostor() -> None:
        send(server, {"tandem": channel_module.JOIN_PROTOCOL, "challenge": "0" * 32})
        frame(server)
        send(server, {"proof": "0" * 64})

    found = both(impostor, lambda: authenticate_to_server(client, TOKEN, 5))
    assert isinstance(found[1], WrongToken)


def test_client_cannot_reflect_the_servers_proof(sockets: Pair) -> None:
    """Opening a second connection to let the server compute the proof must not help."""
    server, client = sockets

    def echo() -> object:
        challenge = json.loads(frame(client))["challenge"]
        send(client, {"challenge": challenge, "proof": channel_module._prove(TOKEN, "server", challenge, challenge)})
        return json.loads(frame(client))

    found = both(lambda: authenticate_client(server, TOKEN, 5), echo)
    assert isinstance(found[0], WrongToken)
    assert found[1] == {"rejected": "token"}


def test_token_is_never_transmitted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as tap:
        client = socket.create_connection(tap.getsockname())
        inner = socket.create_connection(listener.getsockname())
        outer, _ = tap.accept()
        server, _ = listener.accept()
    captured: list[bytes] = []

    def forward(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(4096):
            captured.append(data)
            target.sendall(data)

    threads = [threading.Thread(target=forward, args=ends) for ends in ((outer, inner), (inner, outer))]
    with server, client, inner, outer:
        for thread in threads:
            thread.start()
        lines = joined((server, client))
        lines[0].send({"type": "x"})
        assert lines[1].receive(5) == {"type": "x"}
        everything = b"".join(captured)
        for form in (TOKEN.encode(), TOKEN.encode().hex().encode(), base64.b64encode(TOKEN.encode())):
            assert form not in everything
        for end in (client, server):
            end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)


NOT_TANDEM = {
    "a browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": b"\0" * 100,
    "a huge length": struct.pack(">I", 0xFFFFFFFF) + b"x" * 100,
    "no JSON": struct.pack(">I", 4) + b"\xff\xfe{[",
    "deep JSON": struct.pack(">I", 1000) + b"[" * 1000,
    "a list": struct.pack(">I", 2) + b"[]",
    "null": struct.pack(">I", 4) + b"null",
}


@pytest.mark.parametrize("name", NOT_TANDEM)
def test_other_protocols_are_rejected(sockets: Pair, name: str) -> None:
    server, client = sockets
    client.sendall(NOT_TANDEM[name])
    with pytest.raises(ChannelClosed, match="not a Tandem program"):
        authenticate_client(server, TOKEN, 5)


@pytest.mark.parametrize(
    "answer", [{}, {"proof": 5, "challenge": []}, {"proof": "\ud800", "challenge": "\udfff"}, {"proof": None}]
)
def test_invalid_answers_count_as_wrong_tokens(sockets: Pair, answer: dict[str, object]) -> None:
    server, client = sockets
    send(client, answer)
    with pytest.raises(WrongToken):
        authenticate_client(server, TOKEN, 5)


def test_silent_peer_times_out(sockets: Pair) -> None:
    server, client = sockets
    with pytest.raises(TimeoutError):
        authenticate_client(server, TOKEN, 0.2)
    client.sendall(b"\0\0")  # and nothing more
    with pytest.raises(TimeoutError):
        authenticate_client(server, TOKEN, 0.2)


def test_another_version_is_reported(sockets: Pair) -> None:
    server, client = sockets
    send(server, {"tandem": 99, "challenge": "0" * 32})
    with pytest.raises(ChannelClosed, match="another version of Tandem"):
        authenticate_to_server(client, TOKEN, 5)


def test_forged_message_closes_the_channel(sockets: Pair) -> None:
    server, _ = joined(sockets)
    wire = sockets[1]
    packed = zlib.compress(b'{"type": "start"}')
    wire.sendall(struct.pack(">I", 32 + len(packed)) + b"\0" * 32 + packed)
    with pytest.raises(ChannelClosed, match="failed authentication"):
        server.receive(5)


def test_replayed_message_closes_the_channel(sockets: Pair) -> None:
    server, client = joined(sockets)
    client.send({"type": "once"})
    sockets[0].settimeout(5)
    sent = sockets[0].recv(65536)
    sockets[1].sendall(sent)
    sockets[1].sendall(sent)
    assert server.receive(5) == {"type": "once"}
    with pytest.raises(ChannelClosed, match="failed authentication"):
        server.receive(5)


def test_message_size_is_limited(sockets: Pair) -> None:
    server, client = joined(sockets)
    sockets[1].sendall(struct.pack(">I", (64 << 20) + 1))
    with pytest.raises(ChannelClosed, match="too long"):
        server.receive(5)
    server.send({"type": "bomb", "zeros": "0" * (8 << 20)})  # 8 KB on the wire
    with pytest.raises(ChannelClosed, match="is invalid"):
        client.receive(5)


@pytest.mark.parametrize("text", ["{}", '{"type": 5}', '{"a": ' + "[" * 100_000, "[]"])
def test_invalid_messages_close_the_channel(sockets: Pair, text: str) -> None:
    server, client = joined(sockets)
    packed = zlib.compress(text.encode())
    proof = channel_module._sign(client._key_out, struct.pack(">Q", 0), packed)
    sockets[1].sendall(struct.pack(">I", 32 + len(packed)) + proof + packed)
    with pytest.raises(ChannelClosed, match="is invalid"):
        server.receive(5)


def send(connection: socket.socket, message: object) -> None:
    data = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(data)) + data)


def frame(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(length, socket.MSG_WAITALL)
