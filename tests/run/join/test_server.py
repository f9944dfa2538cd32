"""The join server over real sockets: machines join, leave and come back, and what it prints of them."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from modules.config import DataError, TrainConfig
from modules.run.folder.event_reader import read_events
from modules.run.folder.failures import Failure
from modules.run.folder.run_folder import RunFolder
from modules.run.join import server as server_module
from modules.run.join import session as session_module
from modules.run.join.channel import WrongToken
from modules.run.join.keys import derive_key
from modules.run.join.members import JoinError
from modules.run.join.server import JoinServer
from modules.run.join.session import Session
from modules.run.start import start_run
from tests.ports import free_port
from tests.run.join.conftest import Harness


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
    assert set(harness.server.joined_at().values()) == {"127.0.0.1"}
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


@pytest.mark.slow
def test_missing_machines_are_named(make_server: Callable[..., Harness]) -> None:
    harness = make_server(4)
    harness.join("beta", number=2)
    harness.wait_for("beta", "joined")
    harness.hello("delta", number=3).expect("welcome")
    with pytest.raises(JoinError) as caught:
        harness.server.wait(0.5)
    assert caught.value.message == (
        "not every machine joined within 0 s (joined: beta (127.0.0.1); still being checked: "
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
        assert sum(thread.name == "client" for thread in threading.enumerate()) < 100
    assert harness.server.wait(5) == {1: 1}
    assert len(harness.said) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="reserves the stack of a thread only on Linux and macOS")
def test_a_machine_joins_once_the_system_allows_threads_again(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    before = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        with socket.create_connection(("127.0.0.1", harness.server.port), timeout=60) as connection:
            assert connection.recv(1) == b"", "closed, instead of ending the listener"
    finally:
        threading.stack_size(before)
    harness.join("beta")
    harness.wait_for("beta", "joined")


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
    assert "Still missing: machine 1." in harness.wait_for("beta (127.0.0.1) disconnected")
    session = harness.join("gamma")
    harness.wait_for("gamma", "joined as machine 1")
    session.send("leave", reason="it was stopped")
    harness.wait_for("gamma (127.0.0.1) has left: it was stopped")
    monkeypatch.setattr(session_module, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(Session, "_ping", lambda self: None)  # the cable was pulled: nothing comes, nothing ends
    harness.join("delta")
    harness.wait_for("delta (127.0.0.1) disconnected (no message for")
    assert harness.server.silent == {1}, "unlike those whose connection has ended"


def test_machines_rejoin_while_restarts_are_left(make_server: Callable[..., Harness]) -> None:
    static = make_server()
    static.join("beta")
    static.server.wait(20)
    static.server.start([1, 1], 5555)
    assert "has already started" in static.rejection(static.hello("beta"))
    elastic = make_server(3, on_machine_loss="wait")
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
    elastic.wait_for("beta (127.0.0.1) disconnected", "It can rejoin with the same line.")
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


def test_the_others_start_without_a_machine_that_joins_again_later(images: Path) -> None:
    """on_machine_loss=continue: gamma is lost, and comes back while the others train, with another number of GPUs."""
    data = {"num_nodes": 3, "enable_multi_gpu": True, "concepts": [{"path": str(images)}], "backup_every": "5 steps"}
    asked: list[bool] = []
    recorded: list[Failure] = []
    config = TrainConfig.model_validate({**data, "on_machine_loss": "continue", "initial_port": free_port()})
    harness = Harness(config, recorded.append, take_in=asked.append)
    server = harness.server
    try:
        gamma = harness.join("gamma")
        harness.wait_for("gamma", "joined as machine 1")
        delta = harness.join("delta", processes=2)
        server.wait(20)
        server.start([1, 1, 2], 5555, restarts_left=1)
        assert [each.expect("start")["counts"] for each in (gamma, delta)] == [[1, 1, 2]] * 2
        gamma.close()
        harness.wait_for("gamma (127.0.0.1) disconnected", "It can rejoin with the same line.")
        (loss,) = server.losses
        assert (loss.host, loss.rank, loss.kind) == ("gamma", 1, "machine_lost")
        assert server.first_loss() == loss
        assert recorded == [loss]
        assert server.wait_for_ends(0.0, lambda: None) == {}, "delta still trains"
        delta.send("finished")
        assert server.wait_for_ends(20.0, lambda: None) == {2: 2}
        server.start([1, 0, 2], 5556, resume="latest", restarts_left=1)
        assert server.first_loss() is None
        assert delta.expect("start")["counts"] == [1, 0, 2]
        delta.send("failure", rank=2, host="", kind="error", message="m", advice="", traceback="", age_s=1)
        assert asked == []
        harness.join("gamma", processes=4).close()
        harness.wait_for("gamma (127.0.0.1) takes part from the next backup on.")
        harness.wait_until(lambda: asked == [True, False])
        again = harness.join("gamma", processes=4)
        harness.wait_until(lambda: asked == [True, False, True])
        assert "the next backup of the run" in again.expect("status", "start")["missing"]
        delta.send("finished")
        assert server.wait_for_ends(20.0, lambda: None) == {1: 4, 2: 2}
        assert recorded[1:] == [replace(recorded[1], rank=2, host="delta")], "machine 2 has ranks 1 and 2"
        server.start([1, 4, 2], 5557, restarts_left=1)
        assert [each.expect("start")["counts"] for each in (again, delta)] == [[1, 4, 2]] * 2
        again.close()
        harness.wait_for("gamma (127.0.0.1) disconnected")
        delta.send("finished")
        server.wait_for_ends(20.0, lambda: None)
        server.start([1, 4, 2], 5558, restarts_left=1)
        lost = server.first_loss()
        assert lost is not None, "nobody would wait for a machine that leaves just before the start"
        assert "has left as all were to start" in lost.message
    finally:
        harness.close()


def test_a_machine_whose_part_has_not_ended_is_neither_lost_nor_taken_in(images: Path) -> None:
    """on_machine_loss=continue: the others have started without waiting for it any longer."""
    data = {"num_nodes": 4, "enable_multi_gpu": True, "concepts": [{"path": str(images)}]}
    asked: list[bool] = []
    recorded: list[Failure] = []
    config = TrainConfig.model_validate({**data, "on_machine_loss": "continue", "initial_port": free_port()})
    harness = Harness(config, recorded.append, take_in=asked.append)
    try:
        sessions = []
        for number, name in enumerate(("beta", "gamma", "delta"), 1):
            sessions.append(harness.join(name))
            harness.wait_for(name, f"joined as machine {number}")
        beta, gamma, delta = sessions
        harness.server.start([1, 1, 1, 1], 5555, restarts_left=1)
        delta.send("finished")
        assert harness.server.wait_for_ends(0.0, lambda: None).keys() <= {3}
        harness.wait_until(lambda: harness.server.wait_for_ends(0.0, lambda: None) == {3: 1})
        harness.server.start([1, 0, 0, 1], 5556, restarts_left=1)
        beta.send("failure", rank=1, host="", kind="error", message="m", advice="", traceback="", age_s=1)
        beta.send("asking")
        harness.wait_for("beta", "asks its user for permission")
        gamma.close()
        harness.wait_for("gamma (127.0.0.1) disconnected")
        assert recorded == harness.server.losses == [], "rank 1 is one of delta now"
        assert asked == [False]
        beta.send("finished")
        harness.wait_until(lambda: asked == [False, True])
    finally:
        harness.close()


def test_a_machine_that_leaves_withdraws_no_request_of_another(images: Path) -> None:
    """One becomes ready while the other leaves."""
    data = {"num_nodes": 3, "enable_multi_gpu": True, "concepts": [{"path": str(images)}]}
    config = TrainConfig.model_validate({**data, "on_machine_loss": "continue", "initial_port": free_port()})
    leaves, asks = threading.Event(), threading.Event()
    asked: list[bool] = []

    def take_in(is_any_ready: bool) -> None:
        if is_any_ready:
            asks.set()
        elif not leaves.is_set():
            leaves.set()
            asks.wait(0.3)  # in vain: the other one waits until this has ended
        asked.append(is_any_ready)

    harness = Harness(config, take_in=take_in)
    try:
        harness.server.start([1, 0, 0], 5555, restarts_left=1)
        harness.hello("beta", number=1).close()
        assert leaves.wait(100)
        harness.join("gamma", number=2)
        harness.wait_until(lambda: len(asked) == 2)
        assert asked == [False, True]
    finally:
        harness.close()


def test_replicas_of_another_size_are_not_taken_in(make_server: Callable[..., Harness]) -> None:
    """They would end the run; the number of a machine that takes no part is that of machine 0."""
    sharded = {"training_mode": "fully_sharded", "fsdp_replicate": "machines"}
    harness = make_server(on_machine_loss="continue", **sharded)
    harness.server.start([4, 0], 5555, restarts_left=1)
    sentence = harness.rejection(harness.join("beta", processes=3))
    assert "machine 1 had 4 processes when the run started, and now has 3" in sentence
    harness.join("beta", processes=4)
    harness.wait_for("beta (127.0.0.1) takes part from the next backup on.")


def test_a_machine_reports_failures_of_its_own_ranks_only(images: Path) -> None:
    """A hostile guest tries to end the run in rank 0's name."""
    data = {"num_nodes": 2, "enable_multi_gpu": True, "concepts": [{"path": str(images)}]}
    recorded: list[Failure] = []
    stops: list[tuple[str, str]] = []
    harness = Harness(
        TrainConfig.model_validate({**data, "initial_port": free_port()}),
        recorded.append,
        lambda *stop: stops.append(stop),
    )
    failure = {"host": "alpha", "kind": "error", "message": "m\x1b[2J", "advice": "", "traceback": "", "age_s": 1}
    try:
        session = harness.join("beta", processes=2)
        harness.server.wait(20)
        harness.server.start([1, 2], 5555)
        session.expect("start")
        for _ in range(3):
            session.send("stopping", by="Ctrl-C\x1b[2J", reason="a reason of its own")
            session.send("asking")
        session.send("failure", rank=2, **failure)
        session.send("failure", rank=0, **failure)
        harness.wait_for("violates the protocol", "a failure of rank 0, which is not its own")
    finally:
        harness.close()
    ((stop, reason),) = stops
    assert stop.startswith("beta (127.0.0.1) was stopped by Ctrl-C\\x1b[2J there, so the whole run stops")
    assert reason == "terminated"
    assert sum("asks its user for permission" in line for line in harness.said) == 1, "it cannot fill the log"
    own, lost = recorded
    assert (own.rank, own.host, own.message) == (2, "beta", "m\\x1b[2J"), "the host is the one that it joined as"
    assert (lost.rank, lost.kind, lost.host) == (1, "machine_lost", "beta")


@pytest.mark.parametrize("was_stopped", [True, False])
def test_a_machine_that_somebody_stopped_was_not_killed(images: Path, was_stopped: bool) -> None:
    data = {"num_nodes": 2, "enable_multi_gpu": True, "concepts": [{"path": str(images)}]}
    recorded: list[Failure] = []
    harness = Harness(TrainConfig.model_validate({**data, "initial_port": free_port()}), recorded.append)
    try:
        session = harness.join("beta")
        harness.server.wait(20)
        harness.server.start([1, 1], 5555)
        session.expect("start")
        session.send(
            "leave", reason="it was stopped at once by Ctrl-C", **({"was_stopped": True} if was_stopped else {})
        )
        harness.wait_for("beta (127.0.0.1) has left")
    finally:
        harness.close()
    (lost,) = recorded
    assert ("whether it was killed" in lost.advice) is not was_stopped
    assert "ontinue with --resume latest." in lost.advice


def test_a_machine_whose_program_was_killed_is_not_called_unreachable(images: Path) -> None:
    data = {"num_nodes": 2, "enable_multi_gpu": True, "concepts": [{"path": str(images)}]}
    recorded: list[Failure] = []
    harness = Harness(TrainConfig.model_validate({**data, "initial_port": free_port()}), recorded.append)
    try:
        session = harness.join("beta")
        harness.server.wait(20)
        harness.server.start([1, 1], 5555)
        session.expect("start")
        session.close()  # as its system does for a process that was killed
        harness.wait_for("disconnected", "was closed")
    finally:
        harness.close()
    (lost,) = recorded
    assert lost.message.startswith("beta (127.0.0.1) has ended its part of the run there")
    assert "whether it was killed" in lost.advice


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


def test_stopped_server_does_not_wait_for_listings(
    monkeypatch: pytest.MonkeyPatch, make_server: Callable[..., Harness]
) -> None:
    """A million captions on a slow disk take minutes, in which Python would not end."""
    still = threading.Event()
    monkeypatch.setattr(server_module, "all_listings", lambda config: [still.wait()])
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
