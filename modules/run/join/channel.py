"""An authenticated channel between two machines that share a token: mutual authentication, then signed messages.

The token is never transmitted. Each side sends a random challenge and proves by HMAC that it knows the token; every
later message is numbered and carries an HMAC with a key derived for this connection and direction. Messages are
authenticated, not encrypted.
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

from modules.files import FileFault, decode_json

JOIN_PROTOCOL: Final = 3
_MAX_HANDSHAKE_BYTES: Final = 1024
_MAX_MESSAGE_BYTES: Final = 64 << 20
_MAX_UNPACKED_BYTES: Final = 512 << 20
_SMALL_BYTES: Final = 4 << 20
_MOST_COMPRESSION: Final = 60
_SEND_TIMEOUT_S: Final = 30.0
_PROOF_BYTES: Final = 32
_NOT_TANDEM: Final = "the peer is not a Tandem program"

Message = dict[str, Any]


class ChannelClosed(Exception):
    """The peer has disconnected or violates the protocol."""


class OtherVersion(ChannelClosed):
    """The peer is a Tandem that speaks another protocol."""


class WrongToken(Exception):
    """The peer does not know the token."""


class Channel:
    """One end of an authenticated connection; `send` may be called by several threads, `receive` by one.

    `heard_at` is when anything last arrived, in seconds of time.monotonic().
    """

    def __init__(self, connection: socket.socket, key_out: bytes, key_in: bytes) -> None:
        connection.settimeout(_SEND_TIMEOUT_S)
        self._connection = connection
        self._key_out, self._key_in = key_out, key_in
        self._sent = self._received = 0
        self._buffer = b""
        self._lock = threading.Lock()
        self.heard_at = time.monotonic()

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message. Raises ChannelClosed, and from then on for every message; what arrives can still be received.

        Part of the message may have been sent, so that none can follow: the peer gets the end of the connection.
        """
        packed = zlib.compress(json.dumps(message).encode("ascii"))
        with self._lock:
            proof = _sign(self._key_out, struct.pack(">Q", self._sent), packed)
            try:
                _send(self._connection, proof + packed)
                self._sent += 1
            except BaseException:  # StopRequested, too
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_WR)
                raise

    def receive(self, within_s: float) -> Message | None:
        """The next message; None if there was none in time. Raises ChannelClosed, also for a forged message.

        With 0 s, only what has already arrived is read.
        """
        deadline = time.monotonic() + within_s
        frame = self._next_frame()
        while frame is None:
            if not _wait_readable(self._connection, deadline - time.monotonic()):
                return None
            self._buffer += _receive_some(self._connection)
            self.heard_at = time.monotonic()
            frame = self._next_frame()
        proof, packed = frame[:_PROOF_BYTES], frame[_PROOF_BYTES:]
        if not hmac.compare_digest(proof, _sign(self._key_in, struct.pack(">Q", self._received), packed)):
            raise ChannelClosed("a message failed authentication")
        self._received += 1
        return _unpack(packed)

    @property
    def own_address(self) -> str:
        """The address of this machine at which the connection ends; empty once it is closed."""
        try:
            return str(self._connection.getsockname()[0]).removeprefix("::ffff:")
        except OSError:
            return ""

    def close(self) -> None:
        """Close the connection; the peer notices at once."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _next_frame(self) -> bytes | None:
        """The first complete frame in the buffer, if any. Raises ChannelClosed if it is too long."""
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack(">I", self._buffer[:4])
        if not _PROOF_BYTES <= length <= _MAX_MESSAGE_BYTES:
            raise ChannelClosed("a message is too long")
        if len(self._buffer) < 4 + length:
            return None
        frame, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
        return frame


def authenticate_client(connection: socket.socket, token: str, within_s: float) -> Channel:
    """The server's side of the handshake. Raises WrongToken, ChannelClosed, or TimeoutError after `within_s`."""
    deadline = time.monotonic() + within_s
    mine = secrets.token_hex(16)
    _send(connection, json.dumps({"tandem": JOIN_PROTOCOL, "challenge": mine}).encode())
    answer = _receive_handshake(connection, deadline)
    theirs = _ascii(answer.get("challenge"))
    if not _is_valid_proof(answer.get("proof"), token, "client", mine, theirs):
        _send(connection, json.dumps({"rejected": "token"}).encode())
        raise WrongToken
    _send(connection, json.dumps({"proof": _prove(token, "server", mine, theirs)}).encode())
    return Channel(
        connection, _derive_key(token, "to client", mine, theirs), _derive_key(token, "to server", mine, theirs)
    )


def authenticate_to_server(connection: socket.socket, token: str, within_s: float) -> Channel:
    """The client's side of the handshake. Raises WrongToken, ChannelClosed, or TimeoutError after `within_s`."""
    deadline = time.monotonic() + within_s
    hello = _receive_handshake(connection, deadline)
    if hello.get("tandem") != JOIN_PROTOCOL:
        if "tandem" in hello:
            raise OtherVersion("the peer is another version of Tandem")
        raise ChannelClosed(_NOT_TANDEM)
    theirs, mine = _ascii(hello.get("challenge")), secrets.token_hex(16)
    proof = _prove(token, "client", theirs, mine)
    _send(connection, json.dumps({"challenge": mine, "proof": proof}).encode())
    answer = _receive_handshake(connection, deadline)
    # The server authenticates as well: its config will be used here.
    if not _is_valid_proof(answer.get("proof"), token, "server", theirs, mine):
        raise WrongToken
    return Channel(
        connection, _derive_key(token, "to server", theirs, mine), _derive_key(token, "to client", theirs, mine)
    )


def _receive_handshake(connection: socket.socket, deadline: float) -> Message:
    """One short unauthenticated message. Raises TimeoutError, or ChannelClosed for anything invalid."""
    (length,) = struct.unpack(">I", _receive_exactly(connection, 4, deadline))
    if length > _MAX_HANDSHAKE_BYTES:
        raise ChannelClosed(_NOT_TANDEM)
    frame = _receive_exactly(connection, length, deadline)
    try:
        message = decode_json(frame)
    except FileFault as error:
        raise ChannelClosed(_NOT_TANDEM) from error
    if not isinstance(message, dict):
        raise ChannelClosed(_NOT_TANDEM)
    return message


def _receive_exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Exactly `count` bytes: any further ones belong to the next message. Raises TimeoutError, ChannelClosed."""
    data = b""
    while len(data) < count:
        if not _wait_readable(connection, deadline - time.monotonic()):
            raise TimeoutError
        data += _receive_some(connection, count - len(data))
    return data


def _unpack(packed: bytes) -> Message:
    decompressor = zlib.decompressobj()
    # lists of files shrink to a tenth; a few kilobytes that stand for gigabytes are an attack
    limit = min(_MAX_UNPACKED_BYTES, max(_SMALL_BYTES, _MOST_COMPRESSION * len(packed)))
    try:
        message = decode_json(decompressor.decompress(packed, limit))
    except (zlib.error, FileFault) as error:
        raise ChannelClosed("a message is invalid") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ChannelClosed("a message is invalid")
    return message


def _wait_readable(connection: socket.socket, within_s: float) -> bool:
    try:
        return bool(select.select([connection], [], [], max(within_s, 0.0))[0])
    except (OSError, ValueError) as error:  # closed by another thread
        raise ChannelClosed("the connection was closed") from error


def _receive_some(connection: socket.socket, max_bytes: int = 1 << 20) -> bytes:
    try:
        data = connection.recv(max_bytes)
    except OSError as error:
        raise ChannelClosed("the connection was closed") from error
    if not data:
        raise ChannelClosed("the connection was closed")
    return data


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(struct.pack(">I", len(data)) + data)
    except OSError as error:
        raise ChannelClosed("the connection was closed") from error


def _prove(token: str, role: str, server_challenge: str, client_challenge: str) -> str:
    return _derive_key(token, role, server_challenge, client_challenge).hex()


def _is_valid_proof(given: object, token: str, role: str, server_challenge: str, client_challenge: str) -> bool:
    expected = _prove(token, role, server_challenge, client_challenge)
    return hmac.compare_digest(_ascii(given), expected)


def _ascii(value: object) -> str:
    """The value if it is ASCII text, else an empty string: a peer may send anything."""
    return value if isinstance(value, str) and value.isascii() else ""


def _derive_key(token: str, role: str, server_challenge: str, client_challenge: str) -> bytes:
    text = f"tandem {JOIN_PROTOCOL}|{role}|{server_challenge}|{client_challenge}".encode()
    return hmac.new(token.encode(), text, hashlib.sha256).digest()


def _sign(key: bytes, number: bytes, packed: bytes) -> bytes:
    return hmac.new(key, number + packed, hashlib.sha256).digest()


def listen(port: int) -> socket.socket:
    """A server on every address of this machine, including IPv6 if available."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", port), backlog=128)
