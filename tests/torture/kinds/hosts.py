"""Machine 0 as an attacker who knows the token: a machine joins it over a real connection, to the end of the run."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import zlib
from contextlib import suppress
from random import Random
from typing import Any, Final, Self

from modules.config import TrainConfig, dump
from modules.files import printable
from modules.run import Failure, LaunchPlan
from modules.run.folder.run_folder import RunFolder
from modules.run.join import channel as frames
from modules.run.join import client
from modules.run.join.channel import Channel, ChannelClosed, WrongToken, authenticate_client
from modules.run.join.client import join_run
from modules.run.join.join_line import JoinLine
from modules.run.supervise.outcome import RunOutcome
from modules.run.supervise.supervisor import Supervisor
from tests.torture.kind import Places
from tests.torture.mutations import bytes_changed, json_changed

_TOKEN: Final = "0123456789abcdef0123456789abcdef"
_WAYS: Final = ("content",) * 6 + ("order",) * 3 + ("packed", "frame", "large", "handshake", "end")
_WITHIN_S: Final = 5.0
# Valid values that do not fit the others, or this machine.
_SETTINGS: Final[dict[str, tuple[object, ...]]] = {
    "num_nodes": (1, 3, 1024), "processes_per_node": ([1], [1, 2], [3, 3, 3]), "world_size": (1, 7),
    "max_restarts": (0, 9), "on_machine_loss": ("end",), "training_mode": ("single", "data_parallel", "fully_sharded"),
    "device": ("cuda:1", "cuda"), "device_ids": ([0], [1, 1]), "distributed_backend": ("nccl",),
    "use_torchrun": (False,), "enable_multi_gpu": (False,), "initial_port": (65_535,), "concepts": ([],),
    "family": ("stable_diffusion", "x.py", "../x"), "node_rank": (0, 5), "method": ("lora",), "cache_only": (True,),
    "master_addr": ("::1", "a b"), "base_model": ("a/b", "/etc", "."),
}  # fmt: skip


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._images = places.seeds / "images"
        self._images.mkdir(parents=True)
        (self._images / "a.png").write_bytes(b"12345")
        (self._images / "a.txt").write_text("a caption")
        self._config = TrainConfig.model_validate(
            {"num_nodes": 2, "enable_multi_gpu": True, "device": "cpu", "distributed_backend": "gloo", "family": "demo",
             "on_machine_loss": "wait", "max_restarts": 2, "concepts": [{"path": str(self._images)}]}
        )  # fmt: skip
        self._server = socket.create_server(("127.0.0.1", 0))
        joining: Any = client
        joining.Supervisor = _Training
        client._POLL_EVERY_S = 0.005  # type: ignore[misc]

    def make(self, draw: Random) -> None:
        way = draw.choice(_WAYS)
        messages = [json.dumps(message).encode() for message in self._honest(draw)]
        if way == "content":
            for _ in range(draw.choice((1, 1, 2))):
                at = draw.randrange(len(messages))
                messages[at] = json_changed(messages[at], draw)
        elif way == "order":
            messages += [b'{"type": "ping"}', b'{"type": "hello"}', _REJECTED, b'{"type": "request_listings"}']
            chosen = [messages[0], *draw.choices(messages, k=draw.randint(1, 14))]
            messages = [json_changed(each, draw) if draw.random() < 0.15 else each for each in chosen]
        elif way == "handshake":
            messages = [json_changed(json.dumps(each).encode(), draw) for each in _HANDSHAKE]
        case = self._places.case
        for number, message in enumerate(messages):
            (case / f"message-{number:02}.json").write_bytes(message)
        told = {"way": way, "draw": draw.randrange(1 << 30), "own": draw.random() < 0.2}
        told["codes"] = [draw.choice((0, 0, 1, 1, 130)) for _ in range(3)]
        (case / "case.json").write_text(json.dumps(told))

    def _honest(self, draw: Random) -> list[dict[str, object]]:
        """What machine 0 says in a run that starts twice."""
        config = dump(self._config)
        for name, values in draw.sample(list(_SETTINGS.items()), draw.choice((0, 0, 0, 1, 2))):
            config[name] = draw.choice(values)
        welcome = {"type": "welcome", "host": "alpha", "number": 1, "machines": 2, "config": config,
                   "family": "demo", "run_name": "x", "notes": ["a note"], "nonce": "00",
                   "folder_proofs": ["0" * 64]}  # fmt: skip
        counts = draw.choice(([1, 1],) * 6 + ([1], [1, 0], [0, 1], [1] * 3, [1024] * 2, [7] * 5000))
        start = {"type": "start", "attempt": 1, "counts": counts, "port": 12_355, "nonce": "00", "resume": "",
                 "restarts_left": draw.choice((0, 1, 2))}  # fmt: skip
        again = {**start, "attempt": 2, "nonce": "01", "resume": draw.choice(("latest", "", str(self._places.case)))}
        return [
            welcome, {"type": "request_listings", "which": [0, 1]}, {"type": "status", "missing": "machine 2"}, start,
            again, {"type": "closed", "outcome": "Rank 0 failed."},
        ]  # fmt: skip

    def read(self) -> str:
        case = self._places.case
        told = json.loads((case / "case.json").read_text())
        messages = [file.read_bytes() for file in sorted(case.glob("message-*.json"))]
        _Training.codes = list(told["codes"])
        said: list[str] = []
        line = JoinLine.parse(
            f"127.0.0.1:{self._server.getsockname()[1]}",
            _TOKEN,
            settings=() if told["own"] else (f"runs_dir={case / 'runs'}", f"cache_dir={case / 'cache'}"),
            config=self._own() if told["own"] else None,
            allow=(str(self._images),),
            retry_for_s=0.0,
        )
        serving = threading.Thread(target=self._serve, args=(told["way"], messages, Random(told["draw"])), daemon=True)
        serving.start()
        try:
            code = join_run(line, said.append)
        finally:
            serving.join(_WITHIN_S)
            assert all(each == printable(each, 1 << 20, lines=True) for each in said), "a terminal would obey this"
        assert code in (0, 1, 130), code
        return ""

    def _own(self) -> TrainConfig:
        folders = {name: str(self._places.case / name) for name in ("runs_dir", "cache_dir")}
        return self._config.model_copy(update={**folders, "node_rank": 1})

    def _serve(self, way: str, messages: list[bytes], draw: Random) -> None:
        with suppress(OSError, ChannelClosed, WrongToken):
            connection, _ = self._server.accept()
            with connection:
                connection.settimeout(_WITHIN_S)
                if way == "handshake":
                    raw = b"".join(struct.pack(">I", len(each)) + each for each in messages)
                    connection.sendall(bytes_changed(raw, draw) if draw.random() < 0.5 else raw)
                else:
                    _send(authenticate_client(connection, _TOKEN, _WITHIN_S), connection, way, messages, draw)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # closing with something unread would discard what was sent
                    pass


class _Training(Supervisor):
    """A supervisor whose processes end at once: they have no connection to the attacker."""

    codes: list[int] = []  # noqa: RUF012  # of the starts of this case

    @classmethod
    def from_plan(cls, plan: LaunchPlan, folder: RunFolder, *others: Any, **more: Any) -> Self:
        assert len(more["store_secret"]) == 64
        assert all(each.isprintable() for each in (*plan.argv(), *plan.environment().values()))
        assert plan.num_nodes == json.loads(folder.config_file.read_text())["num_nodes"]
        return super().from_plan(plan, folder, *others, **more)

    def run(self) -> int:
        time.sleep(0.01)
        code = self.codes.pop(0) if self.codes else 0
        failure = Failure(self._ranks.start, "beta", "error", "It failed.", "", "") if code == 1 else None
        self.outcome = RunOutcome(code, failure)
        return code

    def report(self) -> None:
        """Nothing to say."""


_HANDSHAKE: Final = ({"tandem": frames.JOIN_PROTOCOL, "challenge": "ab" * 16}, {"proof": "cd" * 32})
_REJECTED: Final = json.dumps(
    {"type": "rejected", "message": "m", "advice": "a", "kind": "data", "only_there": ["00"]}
).encode()


def _send(channel: Channel, connection: socket.socket, way: str, messages: list[bytes], draw: Random) -> None:
    """Send the messages, authentic but for what `way` says."""
    at = draw.randrange(len(messages))
    if way == "end":
        messages = messages[: at + 1]
    for number, message in enumerate(messages):
        packed = zlib.compress(message)
        if number == at and way == "packed":
            packed = bytes_changed(packed, draw)
        if number == at and way == "large":
            packed = _large(draw)
        proof = frames._sign(channel._key_out, struct.pack(">Q", channel._sent), packed)
        channel._sent += 1
        frame = struct.pack(">I", len(proof + packed)) + proof + packed
        if number == at and way == "frame":
            frame = bytes_changed(frame, draw)
        if number == at and way == "end":
            frame = frame[: draw.randrange(len(frame))]
        connection.sendall(frame)


def _large(draw: Random) -> bytes:
    """A message that takes much room, or seems to."""
    size = draw.choice((1 << 20, 9 << 20))  # a little, or more than a small message may unpack to
    found = draw.choice((b'"%b"', b"[%b]", b'{"type": "ping", "x": "%b"}', b'{"type": "status", "missing": "%b"}'))
    inside = b"0," * (size // 2) + b"0" if found == b"[%b]" else b"x" * size
    return zlib.compress(found % inside, 1)
