"""The line between two machines that know the same token: mutual proof, then messages nobody can forge.

The token itself never travels. Each side sends a random challenge and proves by HMAC that it can answer with the
token; every later message carries a number and an HMAC with a key made for this connection and direction. Messages
are not secret, only genuine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import select
import socket
import struct
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

PROTOCOL: Final = 1
_MOST_GREETING_BYTES: Final = 1024
_MOST_MESSAGE_BYTES: Final = 64 << 20
_MOST_UNPACKED_BYTES: Final = 512 << 20
_SEND_TIMEOUT_S: Final = 30.0
_PROOF_BYTES: Final = 32
_STRANGER: Final = "it does not speak Tandem's language"

Message = dict[str, Any]


class LineClosed(Exception):
    """The other side has gone, or says what no other side of ours would say."""


class WrongToken(Exception):
    """The other side does not know the token."""


class Line:
    """One end of an authenticated connection; `send` may be called by several threads, `receive` by one."""

    def __init__(self, connection: socket.socket, key_out: bytes, key_in: bytes) -> None:
        connection.settimeout(_SEND_TIMEOUT_S)
        self._connection = connection
        self._key_out, self._key_in = key_out, key_in
        self._sent = self._received = 0
        self._buffer = b""
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message. Raises LineClosed."""
        packed = zlib.compress(json.dumps(message).encode("ascii"))
        with self._lock:
            proof = _proof(self._key_out, struct.pack(">Q", self._sent), packed)
            self._sent += 1
            _send(self._connection, proof + packed)

    def receive(self, within_s: float) -> Message | None:
        """The next message; None where none came in time. Raises LineClosed, also for a forged message."""
        deadline = time.monotonic() + within_s
        frame = self._frame()
        while frame is None:
            if not _readable(self._connection, deadline - time.monotonic()):
                return None
            self._buffer += _some(self._connection)
            frame = self._frame()
        proof, packed = frame[:_PROOF_BYTES], frame[_PROOF_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._key_in, struct.pack(">Q", self._received), packed)):
            raise LineClosed("a message is not genuine")
        self._received += 1
        return _unpacked(packed)

    def close(self) -> None:
        """End the connection; the other side sees it at once."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _frame(self) -> bytes | None:
        """The first whole frame of what has come so far. Raises LineClosed for one that is too long."""
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack(">I", self._buffer[:4])
        if not _PROOF_BYTES <= length <= _MOST_MESSAGE_BYTES:
            raise LineClosed("a message is too long")
        if len(self._buffer) < 4 + length:
            return None
        frame, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
        return frame


def greet_guest(connection: socket.socket, token: str, within_s: float) -> Line:
    """The host's side of the proof. Raises WrongToken, LineClosed, or TimeoutError after `within_s`."""
    deadline = time.monotonic() + within_s
    mine = secrets.token_hex(16)
    _send(connection, json.dumps({"tandem": PROTOCOL, "challenge": mine}).encode())
    answer = _greeting(connection, deadline)
    theirs = _plain(answer.get("challenge"))
    if not _is_proof(answer.get("proof"), token, "guest", mine, theirs):
        _send(connection, json.dumps({"refused": "token"}).encode())
        raise WrongToken
    _send(connection, json.dumps({"proof": _answer(token, "host", mine, theirs)}).encode())
    return Line(connection, _key(token, "to guest", mine, theirs), _key(token, "to host", mine, theirs))


def greet_host(connection: socket.socket, token: str, within_s: float) -> Line:
    """The guest's side of the proof. Raises WrongToken, LineClosed, or TimeoutError after `within_s`."""
    deadline = time.monotonic() + within_s
    hello = _greeting(connection, deadline)
    if hello.get("tandem") != PROTOCOL:
        raise LineClosed("it is another version of Tandem" if "tandem" in hello else _STRANGER)
    theirs, mine = _plain(hello.get("challenge")), secrets.token_hex(16)
    proof = _answer(token, "guest", theirs, mine)
    _send(connection, json.dumps({"challenge": mine, "proof": proof}).encode())
    answer = _greeting(connection, deadline)
    # The host proves itself as well: its config will be obeyed here.
    if not _is_proof(answer.get("proof"), token, "host", theirs, mine):
        raise WrongToken
    return Line(connection, _key(token, "to host", theirs, mine), _key(token, "to guest", theirs, mine))


def _greeting(connection: socket.socket, deadline: float) -> Message:
    """One short message before there are keys. Whoever sends something else, or nothing, is not waited for."""
    (length,) = struct.unpack(">I", _exactly(connection, 4, deadline))
    if length > _MOST_GREETING_BYTES:
        raise LineClosed(_STRANGER)
    frame = _exactly(connection, length, deadline)
    try:
        message = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise LineClosed(_STRANGER) from error
    if not isinstance(message, dict):
        raise LineClosed(_STRANGER)
    return message


def _exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    """So many bytes and not one more: those are the first message's. Raises TimeoutError, LineClosed."""
    data = b""
    while len(data) < count:
        if not _readable(connection, deadline - time.monotonic()):
            raise TimeoutError
        data += _some(connection, count - len(data))
    return data


def _unpacked(packed: bytes) -> Message:
    opener = zlib.decompressobj()
    try:
        text = opener.decompress(packed, _MOST_UNPACKED_BYTES)
        message = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise LineClosed("a message cannot be read") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise LineClosed("a message cannot be read")
    return message


def _readable(connection: socket.socket, within_s: float) -> bool:
    if within_s <= 0:
        return False
    try:
        return bool(select.select([connection], [], [], within_s)[0])
    except (OSError, ValueError) as error:  # closed by another thread
        raise LineClosed("the connection has ended") from error


def _some(connection: socket.socket, most: int = 1 << 20) -> bytes:
    try:
        data = connection.recv(most)
    except OSError as error:
        raise LineClosed("the connection has ended") from error
    if not data:
        raise LineClosed("the connection has ended")
    return data


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(struct.pack(">I", len(data)) + data)
    except OSError as error:
        raise LineClosed("the connection has ended") from error


def _answer(token: str, role: str, host_challenge: str, guest_challenge: str) -> str:
    return _key(token, role, host_challenge, guest_challenge).hex()


def _is_proof(given: object, token: str, role: str, host_challenge: str, guest_challenge: str) -> bool:
    expected = _answer(token, role, host_challenge, guest_challenge)
    return hmac.compare_digest(_plain(given), expected)


def _plain(value: object) -> str:
    """The text if it is plain ASCII; anything else a stranger may send becomes empty."""
    return value if isinstance(value, str) and value.isascii() else ""


def _key(token: str, role: str, host_challenge: str, guest_challenge: str) -> bytes:
    text = f"tandem {PROTOCOL}|{role}|{host_challenge}|{guest_challenge}".encode()
    return hmac.new(token.encode(), text, hashlib.sha256).digest()


def _proof(key: bytes, number: bytes, packed: bytes) -> bytes:
    return hmac.new(key, number + packed, hashlib.sha256).digest()
