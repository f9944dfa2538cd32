"""A join server in this process, and machines that connect to it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.run.folder.failures import Failure
from modules.run.join.channel import authenticate_to_server
from modules.run.join.fingerprint import all_listings, code_listing, digest, package_listing
from modules.run.join.join_token import generate_token
from modules.run.join.keys import derive_key
from modules.run.join.server import JoinServer
from modules.run.join.session import Session
from tests.ports import free_port


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A data set of two files."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"12345")
    (folder / "a.txt").write_text("a caption")
    return folder


class Harness:
    """A join server in this process, and clients that connect to it as another machine would."""

    def __init__(
        self,
        config: TrainConfig,
        record: Callable[[Failure], None] = lambda failure: None,
        report_stop: Callable[[str, str], None] = lambda message, reason: None,
        take_in: Callable[[bool], None] = lambda is_any_ready: None,
    ) -> None:
        self.config = config
        self.said: list[str] = []
        self.missing: list[list[int]] = []
        self.server = JoinServer(
            config, "x", self._report, token=generate_token(), record=record, report_stop=report_stop, take_in=take_in
        )
        self._ends = ExitStack()

    def _report(self, message: str, missing: list[int]) -> None:
        self.said.append(message)
        self.missing.append(missing)

    def connect(self, token: str | None = None) -> Session:
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=10)
        self._ends.callback(connection.close)
        session = Session(authenticate_to_server(connection, self.server.token if token is None else token, 10))
        self._ends.callback(session.close)
        return session

    def hello(self, name: str, **more: object) -> Session:
        session = self.connect()
        known = {"code": code_listing(), "packages": package_listing(), "config": None, "number": None}
        session.send("hello", **{"host": name, **known, **more})
        return session

    def join(self, name: str, *, processes: int = 1, config: TrainConfig | None = None, **more: object) -> Session:
        session = self.hello(name, **more)
        self.ready(session, processes=processes, config=config)
        return session

    def ready(self, session: Session, *, processes: int = 1, config: TrainConfig | None = None) -> str:
        """Answer the welcome; the key of this connection's fingerprints."""
        key = derive_key(self.server.token, "fingerprints", session.expect("welcome")["nonce"])
        listings = all_listings(config or self.config)
        session.send("ready", processes=processes, digests=[digest(each, key) for each in listings])
        return key

    def rejection(self, session: Session) -> str:
        message = session.expect("rejected", "request_listings")
        assert message["type"] == "rejected"
        return str(message["message"])

    def wait_for(self, *parts: str) -> str:
        """Wait until machine 0 has printed a line with all these parts."""
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            for line in self.said:
                if all(part in line for part in parts):
                    return line
            time.sleep(0.02)
        raise AssertionError(f"nobody printed {parts}: {self.said}")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition`."""
        deadline = time.monotonic() + 100
        while not condition():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def close(self) -> None:
        self._ends.close()
        self.server.close()


@pytest.fixture
def make_server(images: Path) -> Iterator[Callable[..., Harness]]:
    """Starts the join server of a run on `machines` machines."""
    opened: list[Harness] = []

    def start_server(machines: int = 2, **settings: object) -> Harness:
        data = {"num_nodes": machines, "enable_multi_gpu": True, "concepts": [{"path": str(images)}], **settings}
        data.setdefault("initial_port", free_port())
        opened.append(Harness(TrainConfig.model_validate(data)))
        return opened[-1]

    yield start_server
    for each in opened:
        each.close()
