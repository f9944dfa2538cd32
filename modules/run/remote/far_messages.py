"""Messages between both sides: two lengths of 4 bytes, then a JSON object and bytes. See far_side.py."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

MARK = b"\nTANDEM-REMOTE\n"  # before it may be what a login shell prints
MOST_JSON = 4 << 20  # bytes of one message
MOST_DATA = 1 << 20
PIECE = 256 << 10


class Broken(Exception):
    """The other side has gone, or what it sends is no message."""


class Refused(Exception):
    """Why something is not done: one sentence, for the person at the other side."""


class Busy(Refused):
    """As Refused, until what somebody else does here is over."""


def send(pipe: IO[bytes], message: Mapping[str, Any], data: bytes = b"") -> None:
    """Write one message. Raises OSError."""
    text = json.dumps(message).encode()
    pipe.write(struct.pack(">II", len(text), len(data)) + text + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The JSON text and the bytes of the next message; None at the end. Raises Broken."""
    header = pipe.read(8)
    if not header:
        return None
    if len(header) < 8:
        raise Broken("ended in the middle of a message")
    lengths = struct.unpack(">II", header)
    if lengths[0] > MOST_JSON or lengths[1] > MOST_DATA:
        raise Broken("a message is too long")
    text, data = (pipe.read(length) for length in lengths)
    if (len(text), len(data)) != lengths:
        raise Broken("ended in the middle of a message")
    return text, data
