"""The join server over real sockets: which machines are accepted or rejected, and what both sides print."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from modules import __version__
from modules.config import ConfigError, DataError, TandemError, TrainConfig
from modules.run.folder.event_reader import read_events
from modules.run.folder.failures import Failure
from modules.run.folder.run_folder import RunFolder
from modules.run.join import admission as admission_module
from modules.run.join import fingerprint
from modules.run.join import join_line as join_line_module
from modules.run.join import server as server_module
from modules.run.join import session as session_module
from modules.run.join.channel import ChannelClosed, WrongToken, authenticate_to_server
from modules.run.join.client import join_run
from modules.run.join.fingerprint import all_listings, code_listing, digest, package_listing
from modules.run.join.join_line import JoinLine, connect, join_line_from_config
from modules.run.join.join_token import generate_token
from modules.run.join.keys import derive_key
from modules.run.join.local_settings import shared_settings
from modules.run.join.members import JoinError, Members, RemoteMachine
from modules.run.join.server import JoinServer
from modules.run.join.session import Session
from modules.run.join.unauthenticated import UnauthenticatedConnections
from modules.run.start import start_run
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
        report_stop: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.config = config
        self.said: list[str] = []
        self.missing: list[list[int]] = []
        self.server = JoinServer(
            config, "x", self._report, token=generate_token(), record=record, report_stop=report_stop
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
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for line in self.said:
                if all(part in line for part in parts):
                    return line
            time.sleep(0.02)
        raise AssertionError(f"nobody printed {parts}: {self.said}")

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


def test_all_machines_join_and_start_together(make_server: Callable[..., Harness]) -> None:
    harness = make_server(3)
    beta = harness.join("beta", processes=2)
    assert "beta (127.0.0.1) has joined as machine 1 with 2 processes. Still missing: machine 2." in harness.wait_for(
        "beta"
    )
    assert beta.expect("status")["missing"] == "machine 2"
    gamma = harness.join("gamma")
    assert harness.wait_for("gamma").endswith("as machine 2 with 1 process.")
    assert harness.server.wait(20) == {1: 2, 2: 1}
    harness.server.start([4, 2, 1], 5555)
    for session in (beta, gamma):
        start = session.expect("start")
        assert (start["counts"], start["port"]) == ([4, 2, 1], 5555)
        session.send("leave", is_done=True, reason="")
    harness.server.close("rank 3 failed")
    assert len(harness.said) == 2, "a proper end prints nothing here"
    assert harness.missing == [[2], []], "without the machine that has just joined"


def test_welcome_message_is_complete(make_server: Callable[..., Harness]) -> None:
    harness = make_server(2, learning_rate=0.5)
    welcome = harness.hello("beta").expect("welcome")
    assert (welcome["number"], welcome["machines"], welcome["run_name"]) == (1, 2, "x")
    assert TrainConfig.model_validate(welcome["config"]) == harness.config


def test_missing_machines_are_named(make_server: Callable[..., Harness]) -> None:
    harness = make_server(4)
    harness.join("beta", number=2)
    harness.wait_for("beta", "joined")
    harness.hello("delta", number=3).expect("welcome")
    with pytest.raises(JoinError) as caught:
        harness.server.wait(0.5)
    assert caught.value.message == (
        "not every machine joined within 0 s (joined: machine 2 = beta (127.0.0.1); still being checked: "
        "delta (127.0.0.1); missing: machines 1 and 3)"
    )


def test_wrong_token_is_reported_once(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    for _ in range(5):
        with pytest.raises(WrongToken):
            harness.connect("0" * 24)
    harness.wait_for("A connection from 127.0.0.1 was rejected: wrong token. The line of an earlier start joins no")
    harness.join("beta")
    harness.wait_for("beta", "joined")
    assert len(harness.said) == 2


def test_connection_flood_locks_nobody_out(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    with ExitStack() as connections:
        for number in range(200):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", harness.server.port)))
            if number % 2:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        harness.join("beta")  # at the first try, while the connections hold their connections
        harness.wait_for("beta", "joined")
    assert harness.server.wait(5) == {1: 1}
    assert len(harness.said) == 1


@pytest.mark.parametrize(
    "arrival",
    [{"code": 5}, {"packages": []}, {"number": "one"}, {"number": True}, {"code": None}, {"host": None, "number": 1.5}],
)
def test_invalid_messages_are_rejected(make_server: Callable[..., Harness], arrival: dict[str, Any]) -> None:
    harness = make_server()
    session = harness.hello("beta", **arrival)
    with pytest.raises(ChannelClosed):
        session.expect("welcome")
    harness.wait_for("violates the protocol")
    session = harness.hello("beta")
    session.expect("welcome")
    session.send("ready", processes=None, digests="x")
    with pytest.raises(ChannelClosed):
        session.expect("start")
    harness.join("gamma")
    harness.wait_for("gamma", "joined as machine 1")


@pytest.mark.parametrize("processes", [-5, 0, True, 1025, 1.0, "2"])
def test_invalid_process_counts_are_rejected(make_server: Callable[..., Harness], processes: Any) -> None:
    harness = make_server()
    with pytest.raises(ChannelClosed):
        harness.join("beta", processes=processes).expect("start")
    harness.wait_for("violates the protocol", "number of processes", "Still missing: machine 1.")


def test_differing_code_names_the_file(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    code = {**code_listing(), "modules/run/join/client.py": "other"}
    sentence = harness.rejection(harness.hello("beta", code=code))
    assert sentence == "Tandem's code on beta differs from machine 0's in modules/run/join/client.py"
    assert f"beta (127.0.0.1) was rejected: {sentence}. Still missing: machine 1." in harness.wait_for("beta")
    older = harness.rejection(harness.hello("beta", code=code, tandem="0.0.1"))
    assert older == f"Tandem is 0.0.1 on beta and {__version__} on machine 0", "that explains all files"
    harness.join("beta", code=code, allow_differences=True)
    harness.wait_for("beta", "joined")
    harness.wait_for("Note: Tandem's code on beta differs")


def test_differing_packages_by_severity(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    assert "torch is 1.0 on beta" in harness.rejection(
        harness.hello("beta", packages={**package_listing(), "torch": "1.0"})
    )
    harness.join("beta", packages={**package_listing(), "numpy": "1.0"})
    harness.wait_for("Note: numpy is 1.0 on beta")


def test_what_a_machine_says_of_itself_is_one_printable_line(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    bad = "\x1b[2J\nRank 0: all fine"
    long = {f"{number}{bad}": bad * 1000 for number in range(5)}
    harness.hello("beta", code={**code_listing(), **long}).expect("rejected")
    harness.wait_for("was rejected: Tandem's code", "0\\x1b[2J\\nRank 0")
    settings = {**shared_settings(harness.config), "learning_rate": bad, **long}
    harness.hello("beta", config=settings).expect("rejected")
    harness.wait_for("was rejected: the settings differ", "is \\x1b[2J\\n")
    harness.hello("beta", packages={**package_listing(), "torch": bad * 1000}).expect("rejected")
    harness.wait_for("torch is \\x1b[2J\\n")
    harness.hello("beta", packages={**package_listing(), **long, "numpy": bad}).send("leave", reason=bad * 1000)
    harness.wait_for("has left: \\x1b[2J\\n")
    member = harness.join("beta", packages={**package_listing(), **long, "numpy": bad})
    harness.wait_for("Note: numpy is \\x1b[2J\\n")
    harness.wait_for("beta", "joined")
    member.send("leave", reason=bad * 1000)
    harness.wait_for("machine 1, has left: \\x1b[2J\\n")
    assert all(line.isprintable() and len(line) < 2000 for line in harness.said), harness.said
    assert not [line for line in harness.said if "Note: 0" in line], "packages that no Tandem names"


def test_differing_images_are_named(make_server: Callable[..., Harness], images: Path, tmp_path: Path) -> None:
    harness = make_server()
    other = tmp_path / "other"
    shutil.copytree(images, other)
    (other / "a.txt").write_text("another caption")
    (other / "b.png").touch()
    config = harness.config.model_copy(
        update={"concepts": (harness.config.concepts[0].model_copy(update={"path": str(other)}),)}
    )
    session = harness.hello("beta")
    key = harness.ready(session, config=config)
    assert session.expect("request_listings")["which"] == [0]
    listing = fingerprint.data_listing(config.concepts[0])
    session.send("listings", listings=[fingerprint.keyed_listing(listing, key)])
    rejected = session.expect("rejected")
    assert rejected["message"].endswith("2 files differ: a.txt, 1 only on beta")
    assert rejected["only_there"] == [fingerprint.keyed_names(listing, key)["b.png"]]
    harness.wait_for("was rejected: the data set (concepts.0,", "1 only on beta")


def test_differing_settings_are_named(make_server: Callable[..., Harness]) -> None:
    harness = make_server(2, seed=5)
    own = harness.config.model_copy(update={"node_rank": 1, "cache_dir": "elsewhere", "learning_rate": 0.5})
    session = harness.hello("beta", number=1, config=shared_settings(own))
    assert harness.rejection(session) == (
        f"the settings differ: learning_rate is 0.5 on beta and {harness.config.learning_rate} on machine 0"
    )
    harness.join("beta", number=1)
    harness.wait_for("beta", "joined as machine 1")


def test_machine_numbers_are_unique(make_server: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_SLOT_TIMEOUT_S", 0.1)
    harness = make_server(3)
    harness.join("beta", number=2)
    harness.wait_for("beta", "machine 2")
    assert "machine 2, beta (127.0.0.1), has already connected" in harness.rejection(harness.hello("gamma", number=2))
    assert "its number is 3, but this run has machines 0 to 2" in harness.rejection(harness.hello("gamma", number=3))
    harness.join("gamma")
    harness.wait_for("gamma", "machine 1")
    assert "all 3 machines have already connected" in harness.rejection(harness.hello("delta"))


def test_disconnected_machine_is_missing(make_server: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_server()
    harness.join("beta").close()
    assert "Still missing: machine 1." in harness.wait_for("beta (127.0.0.1), machine 1, disconnected")
    session = harness.join("gamma")
    harness.wait_for("gamma", "joined as machine 1")
    session.send("leave", reason="it was stopped")
    harness.wait_for("gamma (127.0.0.1), machine 1, has left: it was stopped")
    monkeypatch.setattr(session_module, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(Session, "_ping", lambda self: None)  # the cable was pulled: nothing comes, nothing ends
    harness.join("delta")
    harness.wait_for("delta (127.0.0.1), machine 1, disconnected (no message for")
    assert harness.server.silent == {1}, "unlike those whose connection has ended"


def test_machines_rejoin_while_restarts_are_left(make_server: Callable[..., Harness]) -> None:
    static = make_server()
    static.join("beta")
    static.server.wait(20)
    static.server.start([1, 1], 5555)
    assert "has already started" in static.rejection(static.hello("beta"))
    elastic = make_server(3, rendezvous="elastic", max_restarts=2)
    first = elastic.join("beta", processes=2)
    elastic.wait_for("beta", "joined as machine 1")
    other = elastic.join("gamma")
    elastic.server.wait(20)
    secret = elastic.server.start([1, 2, 1], 5555, restarts_left=2)
    started = [session.expect("start") for session in (first, other)]
    for each in started:
        assert derive_key(elastic.server.token, "store", each["nonce"]) == secret
    assert secret not in str(started), "it is derived on both sides, never sent"
    first.close()
    elastic.wait_for("beta (127.0.0.1), machine 1, disconnected", "It can rejoin with the same line.")
    sentence = elastic.rejection(elastic.join("beta"))
    assert "machine 1 had 2 processes when the run started, and now has 1" in sentence
    again = elastic.join("beta", processes=2)
    elastic.wait_for("beta (127.0.0.1) has joined as machine 1 with 2 processes.")
    with pytest.raises(JoinError, match="not every machine"):  # gamma still trains
        elastic.server.wait(0.3)
    other.send("finished")
    elastic.server.wait(20)
    assert elastic.server.start([1, 2, 1], 5556, resume="latest", restarts_left=0) != secret
    for session in (again, other):
        start = session.expect("start")
        assert (start["port"], start["resume"], start["counts"]) == (5556, "latest", [1, 2, 1])
    assert "has already started" in elastic.rejection(elastic.hello("beta")), "no restart is left"


def test_a_machine_reports_failures_of_its_own_ranks_only(images: Path) -> None:
    """A hostile guest tries to end the run in rank 0's name."""
    data = {"num_nodes": 2, "enable_multi_gpu": True, "concepts": [{"path": str(images)}]}
    recorded: list[Failure] = []
    stops: list[str] = []
    harness = Harness(TrainConfig.model_validate({**data, "initial_port": free_port()}), recorded.append, stops.append)
    failure = {"host": "alpha", "kind": "error", "message": "m\x1b[2J", "advice": "", "traceback": "", "age_s": 1}
    try:
        session = harness.join("beta", processes=2)
        harness.server.wait(20)
        harness.server.start([1, 2], 5555)
        session.expect("start")
        session.send("stopping", by="Ctrl-C\x1b[2J")
        session.send("failure", rank=2, **failure)
        session.send("failure", rank=0, **failure)
        harness.wait_for("violates the protocol", "a failure of rank 0, which is not its own")
    finally:
        harness.close()
    (stop,) = stops
    assert stop.startswith("Machine 1, beta (127.0.0.1), was stopped by Ctrl-C\\x1b[2J there, so the whole run stops")
    own, lost = recorded
    assert (own.rank, own.host, own.message) == (2, "beta", "m\\x1b[2J"), "the host is the one that it joined as"
    assert (lost.rank, lost.kind, lost.host) == (1, "machine_lost", "beta")


def test_missing_images_on_machine_0_end_the_wait(make_server: Callable[..., Harness], tmp_path: Path) -> None:
    harness = make_server(concepts=[{"path": str(tmp_path / "nowhere")}])
    with pytest.raises(DataError, match="no folder"):
        harness.server.wait(30)


def test_next_free_port_is_used(make_server: Callable[..., Harness]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        harness = make_server(initial_port=taken - 1)
        assert harness.server.port > taken
        harness.join("beta")
        harness.wait_for("beta", "joined")


def refused(wanted: str, **settings: object) -> pytest.ExceptionInfo[Any]:
    with pytest.raises((ConfigError, DataError, JoinError)) as caught:
        join_run(JoinLine.parse(**settings), lambda line: None)  # type: ignore[arg-type]
    assert wanted in str(caught.value)
    return caught


def test_messages_on_the_joining_side(
    make_server: Callable[..., Harness], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make_server(runs_dir=str(tmp_path / "theirs"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TANDEM_ALLOW", str(images))
    address = f"127.0.0.1:{harness.server.port}"
    refused("it must be HOST or HOST:PORT", address="a b", token="0" * 32)
    refused("--join needs the token of the run, in TANDEM_JOIN_TOKEN", address=address, token=None)
    refused("The token is not that of the run at".lower(), address=address, token="0" * 32)
    refused("no run waits for machines", address="127.0.0.1:9", token="0" * 32, retry_for_s=0)
    refused("'a..b' is neither a host name nor an IP address", address="a..b", token="0" * 32)
    refused("Copy the whole line from machine 0", address=address, token=harness.server.token[:10])
    refused("characters other than plain letters and digits", address=address, token="0" * 31 + "\u00fc")
    mine = {"address": address, "token": harness.server.token}
    refused("learning_rate applies to the whole run", **mine, settings=("learning_rate=1",))
    refused("concepts: there is no folder", **mine, settings=("concepts.0.path=/nowhere",))
    harness.wait_for("has left: concepts: there is no folder '/nowhere'")
    own_family = tmp_path / "mine.py"
    own_family.write_text("raise SystemExit('never run')")
    refused("is not the same here as on", **mine, settings=(f"family={own_family}",))
    other = tmp_path / "other"
    shutil.copytree(images, other)
    (other / "a.png").write_bytes(b"longer than before")
    caught = refused("1 file differs: a.png", **mine, settings=(f"concepts.0.path={other}",))
    assert caught.value.exit_code == 4
    assert list((tmp_path / "runs" / "x").glob("machine-1.json")), "its own runs_dir, not machine 0's"
    assert not (tmp_path / "theirs").exists()


def test_machine_0_says_that_a_machine_has_connected_and_not_confirmed(
    make_server: Callable[..., Harness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user has been asked, or it compares many images: who has pasted the line must not read that nobody came."""
    harness = make_server()
    monkeypatch.chdir(tmp_path)
    summaries: list[str] = []

    def refuse(question: str) -> bool:
        harness.wait_for(" (127.0.0.1) has connected and asks its user for permission")
        summaries.append(harness.server.summary())
        return False

    line = JoinLine.parse(f"127.0.0.1:{harness.server.port}", harness.server.token)
    with pytest.raises(ConfigError, match="nobody has allowed"):
        join_run(line, lambda text: None, refuse)
    assert "(127.0.0.1), which asks its user for permission; missing: machine 1" in summaries[0]
    harness.wait_for("has left: a path of the config is missing there, or not allowed")
    monkeypatch.setattr(admission_module, "_SLOW_S", 0.0)
    harness.hello("gamma").expect("welcome")
    harness.wait_for("gamma (127.0.0.1) has connected and is still checking its files")
    other = make_server()

    def allow_too_late(question: str) -> bool:
        other.server.close("it was stopped")
        return True

    line = JoinLine.parse(f"127.0.0.1:{other.server.port}", other.server.token)
    with pytest.raises(JoinError, match=r"\(machine 0\) has ended: it was stopped"):
        join_run(line, lambda text: None, allow_too_late)


def test_waiting_for_machine_0_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_line_module, "_NOTICE_AFTER_S", 0.1)
    said: list[str] = []
    with pytest.raises(ConfigError, match="no run waits for machines"):
        connect(JoinLine.parse("127.0.0.1:9", "0" * 32, retry_for_s=1.0), said.append)
    assert said == ["No answer yet; retrying for 1 s."]


def test_a_machine_0_of_another_version_is_not_asked_again() -> None:
    greeting = json.dumps({"tandem": 99, "challenge": "0" * 32}).encode()

    def greet(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(struct.pack(">I", len(greeting)) + greeting)
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConfigError, match="has another version of Tandem than this machine") as caught:
            connect(JoinLine.parse(place, "0" * 32), lambda line: None)
    assert "git pull" in caught.value.advice


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_ctrl_c_works_in_background_jobs() -> None:
    """There SIGINT is ignored from the start; nohup ignores SIGHUP on purpose."""
    number = {name: signal.signal(name, signal.SIG_IGN) for name in (signal.SIGINT, signal.SIGHUP)}
    try:
        with session_module.raise_on_stop_signals():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(session_module.StopRequested) as stop:
                signal.raise_signal(signal.SIGINT)
        assert stop.value.exit_code == 130
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN, "restored"
    finally:
        for name, handler in number.items():
            signal.signal(name, handler)


def test_stopped_server_does_not_wait_for_listings(
    monkeypatch: pytest.MonkeyPatch, make_server: Callable[..., Harness]
) -> None:
    """A million captions on a slow disk take minutes, in which Python would not end."""
    still = threading.Event()
    monkeypatch.setattr(admission_module, "all_listings", lambda config: [still.wait()])
    make_server()
    (thread,) = [each for each in threading.enumerate() if each.name == "listings"]
    assert thread.daemon
    still.set()


def test_rendezvous_port_differs_from_join_port(monkeypatch: pytest.MonkeyPatch, images: Path, tmp_path: Path) -> None:
    """The port after the one in use is the run's from its plan on, and the join server takes another one."""

    def stopped(self: JoinServer, within_s: float, interrupt: object, *, if_late: str) -> dict[int, int]:
        assert if_late == "Run the line above on the machines that join by hand sooner, or raise startup_timeout_s"
        raise session_module.StopRequested(130)

    monkeypatch.setattr(JoinServer, "wait", stopped)
    port, said = free_port(), list[str]()
    settings = {"concepts": [{"path": str(images)}], "runs_dir": str(tmp_path / "runs")}
    config = TrainConfig.model_validate({"num_nodes": 2, "enable_multi_gpu": True, "initial_port": port, **settings})
    with socket.create_server(("", port)):
        folder = RunFolder.create(config)
        assert start_run(config, folder, said.append) == 130
    whole = "\n".join(said)
    assert "log/join_line.txt" in whole
    assert "TANDEM_JOIN_TOKEN" not in whole, "the output is no terminal"
    assert f"Note: port {port + 1} instead of {port}, which is in use" in whole
    assert re.search(rf"machines join at port (?!{port + 1} )\d+ instead of {port + 1}, which is in use", whole)
    joining, finished = read_events(folder.events_file)
    assert (joining["type"], joining["missing"]) == ("joining", [1])
    assert "Ctrl-C" not in str(joining["message"])
    assert "token" not in folder.events_file.read_text()
    assert finished["type"] == "finished"
    assert not folder.join_line_file.exists(), "the wait is over"


def test_every_start_of_a_run_is_joined_in_the_same_folder(
    monkeypatch: pytest.MonkeyPatch, images: Path, tmp_path: Path
) -> None:
    """Each has another token; a run that only has the same name is refused."""
    said: list[str] = []
    guests: list[threading.Thread] = []
    wait = JoinServer.wait

    def guest(port: int, token: str) -> None:
        try:
            more = {"settings": (f"runs_dir={tmp_path / 'there'}",), "allow": (str(images),)}
            join_run(JoinLine.parse(f"127.0.0.1:{port}", token, **more), lambda line: None)
        except TandemError as error:
            said.append(str(error))

    def joined(self: JoinServer, within_s: float, interrupt: object, *, if_late: str) -> dict[int, int]:
        def check() -> None:
            if not joining.is_alive():
                raise session_module.StopRequested(130)

        joining = threading.Thread(target=guest, args=(self.port, self.token))
        joining.start()
        guests.append(joining)
        wait(self, 30, check)
        raise session_module.StopRequested(130)

    monkeypatch.setattr(JoinServer, "wait", joined)
    made = {"num_nodes": 2, "enable_multi_gpu": True, "run_name": "x", "concepts": [{"path": str(images)}]}
    for number, expected in enumerate(("it was stopped", "it was stopped", "belongs to another run")):
        place = tmp_path / ("another" if number == 2 else "here")
        config = TrainConfig.model_validate({**made, "runs_dir": str(place), "initial_port": free_port()})
        folder = RunFolder.open(place, "x") if number == 1 else RunFolder.create(config)
        assert start_run(config, folder, lambda line: None) == 130
        guests[number].join()
        assert expected in said[number]


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


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("a.b", "a.b", 12356), ("10.0.0.1:80", "10.0.0.1", 80), ("[::1]:80", "::1", 80), ("fe80::1", "fe80::1", 12356)],
)
def test_join_addresses(address: str, host: str, port: int) -> None:
    made = JoinLine.parse(address, "0" * 32)
    assert (made.host, made.port) == (host, port)
    for wrong in ("", "a:", "a:b", "a:99999", ":80", "a b"):
        with pytest.raises(ConfigError, match="--join is"):
            JoinLine.parse(wrong, "0" * 32)


def test_numbered_machine_needs_the_token() -> None:
    config = TrainConfig(num_nodes=2, node_rank=1, master_addr="zeus", enable_multi_gpu=True)
    with pytest.raises(ConfigError, match="node_rank is 1, but the token is missing"):
        join_line_from_config(config, None)
    made = join_line_from_config(config, "0" * 32)
    assert (made.host, made.port, made.config) == ("zeus", 12356, config)


def test_a_stop_ends_the_wait_even_if_every_machine_is_ready() -> None:
    """Such as the stop file, written while the last machine joined."""
    checked: list[int] = []
    assert Members(1).wait_until_complete(1, 0, lambda: checked.append(1))
    assert checked


def test_members_summary() -> None:
    members = Members(5)
    assert members.summary() == "joined: none; missing: machines 1, 2, 3 and 4"
    assert [
        members.claim(RemoteMachine(name, "a"), wanted, 0) for name, wanted in (("x", 3), ("y", None), ("z", 3))
    ] == [
        3,
        1,
        None,
    ]
    members.mark_ready(1, 1)
    assert members.missing() == "machines 2, 3 and 4"
    members.release(1)
    assert members.missing() == "machines 1, 2, 3 and 4"
