"""The bytes of a machine that joins, or of the one that it joins: before and after the proof of the token."""

from __future__ import annotations

import json
import socket
import threading
import time
import zlib
from contextlib import suppress
from random import Random

from modules.config import TrainConfig, dump
from modules.run.join import channel as frames
from modules.run.join.channel import ChannelClosed, WrongToken, authenticate_client, authenticate_to_server
from modules.run.join.fingerprint import code_listing, package_listing
from modules.run.join.messages import Start, Welcome, record
from modules.run.join.server import JoinServer
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, json_changed

_TOKEN = "0123456789abcdef0123456789abcdef"
_WITHIN_S = 0.2  # a mutant may announce more than it sends
_ROLES = ("to server", "to client", "message", "welcome", "start", "member")


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        images = places.seeds / "images"
        images.mkdir(parents=True)
        (images / "a.txt").write_text("a caption")
        self._config = TrainConfig.model_validate(
            {"num_nodes": 2, "concepts": [{"path": str(images)}], "initial_port": 41_000, "family": "demo"}
        )
        welcome = {"type": "welcome", "host": "alpha", "number": 1, "machines": 2, "config": dump(self._config),
                   "family": "demo", "run_name": "x", "notes": ["a note"], "nonce": "00"}  # fmt: skip
        self._seeds: dict[str, list[dict[str, object]]] = {
            "to server": [{"challenge": "ab" * 16, "proof": "cd" * 32}],
            "to client": [{"tandem": frames.JOIN_PROTOCOL, "challenge": "ab" * 16}, {"proof": "cd" * 32}],
            "message": [{"type": "status", "missing": "machine 1"}],
            "welcome": [welcome],
            "start": [{"type": "start", "counts": [1, 1], "port": 12_355, "nonce": "00"}],
            "member": [
                {"type": "hello", "host": "b", "code": {}, "packages": {}, "config": None, "number": None},
                {"type": "ready", "processes": 1, "digests": ["1-ab", "1-cd"]},
                {"type": "failure", "rank": 1, "host": "b", "kind": "error", "message": "m", "advice": "a",
                 "traceback": "", "age_s": 0.5, "time": 1e9},
                {"type": "finished"},
                {"type": "leave", "is_done": False, "reason": "it was stopped"},
            ],
        }  # fmt: skip

    def make(self, draw: Random) -> None:
        role = draw.choice(_ROLES)
        messages = [json.dumps(message).encode() for message in self._seeds[role]]
        at = draw.randrange(len(messages))
        messages[at] = json_changed(messages[at], draw)
        raw = b"".join(len(message).to_bytes(4, "big") + message for message in messages)
        if draw.random() < 0.5:
            raw = bytes_changed(raw, draw)
        (self._places.case / "role").write_text(f"{role}\n{at}\n{draw.randrange(1 << 30)}")
        (self._places.case / "raw").write_bytes(raw[: 1 << 20])
        (self._places.case / "message").write_bytes(messages[at])

    def read(self) -> str:
        role, at, number = (self._places.case / "role").read_text().split("\n")
        message = (self._places.case / "message").read_bytes()
        try:
            if role in ("to server", "to client"):
                return self._handshake(role)
            if role == "member":
                return self._member(message, int(at))
            return self._message(role, message, Random(number))
        except (ChannelClosed, WrongToken, TimeoutError) as error:  # what the callers of a channel expect
            return f"the connection is closed: {error or type(error).__name__}"

    def _handshake(self, role: str) -> str:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall((self._places.case / "raw").read_bytes()[: 64 << 10])
            authenticate = authenticate_client if role == "to server" else authenticate_to_server
            authenticate(ours, _TOKEN, _WITHIN_S)
        raise AssertionError("somebody without the token was let in")

    def _message(self, role: str, message: bytes, draw: Random) -> str:
        """A message that is signed, so that only its content is wrong, or whose frame was changed as well."""
        server, client = _channels()
        packed = zlib.compress(message)
        if draw.random() < 0.2:
            packed = bytes_changed(packed, draw)
        proof = frames._sign(client._key_out, (0).to_bytes(8, "big"), packed)
        frame = len(proof + packed).to_bytes(4, "big") + proof + packed
        if draw.random() < 0.2:
            frame = bytes_changed(frame, draw)
        try:
            threading.Thread(target=_send, args=(client._connection, frame), daemon=True).start()
            received = server.receive(1.0)
        finally:
            server.close()
            client.close()
        if received is None:
            return "it is incomplete"
        if role != "message":
            record(Welcome if role == "welcome" else Start, received)
        return ""

    def _member(self, message: bytes, at: int) -> str:
        """A machine that knows the token and then says something else than machines say."""
        reports: list[str] = []
        server = JoinServer(self._config, "x", lambda text, missing: reports.append(text), token=_TOKEN)
        try:
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=2)
            channel = authenticate_to_server(connection, _TOKEN, 2)
            honest = [json.loads(json.dumps(each)) for each in self._seeds["member"]]
            honest[0] |= {"code": code_listing(), "packages": package_listing()}
            for number, each in enumerate(honest[: at + 1]):
                text = message if number == at else json.dumps(each).encode()
                _send_signed(channel, text)
            deadline = time.monotonic() + 1.0
            with suppress(ChannelClosed):
                while time.monotonic() < deadline:
                    answer = channel.receive(0.1)
                    if answer is not None and answer["type"] in ("rejected", "closed"):
                        break
            channel.close()
        finally:
            server.close("the run has ended")
        assert all(report.isprintable() for report in reports), "a terminal would obey this"
        return "; ".join(reports)


def _channels() -> tuple[frames.Channel, frames.Channel]:
    """Both ends of an authenticated connection."""
    ours, theirs = socket.socketpair()
    ends: list[frames.Channel] = []
    joining = threading.Thread(target=lambda: ends.append(authenticate_to_server(theirs, _TOKEN, 5)))
    joining.start()
    server = authenticate_client(ours, _TOKEN, 5)
    joining.join()
    return server, ends[0]


def _send_signed(channel: frames.Channel, text: bytes) -> None:
    packed = zlib.compress(text)
    with suppress(ChannelClosed, OSError):
        proof = frames._sign(channel._key_out, channel._sent.to_bytes(8, "big"), packed)
        channel._sent += 1
        frames._send(channel._connection, proof + packed)


def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
