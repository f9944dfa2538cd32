"""The side that joins a run: what it refuses, asks and prints, and how long it waits."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config import ConfigError, DataError, TandemError, TrainConfig
from modules.run.folder.run_folder import RunFolder
from modules.run.join import join_line as join_line_module
from modules.run.join import server as server_module
from modules.run.join import session as session_module
from modules.run.join.client import join_run
from modules.run.join.join_line import JoinLine, connect
from modules.run.join.members import JoinError
from modules.run.join.messages import Welcome
from modules.run.join.received_config import merge_config
from modules.run.join.server import JoinServer
from modules.run.start import start_run
from tests.ports import free_port
from tests.run.join.conftest import Harness


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


@pytest.mark.slow
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
    monkeypatch.setattr(server_module, "_SLOW_S", 0.0)
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


def test_ctrl_c_before_the_processes_are_supervised_is_told_to_machine_0(
    make_server: Callable[..., Harness], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make_server(runs_dir=str(tmp_path / "theirs"))
    monkeypatch.chdir(tmp_path)

    def start() -> None:
        harness.server.wait(100)
        harness.server.start([1, 1], free_port())

    def echo(line: str) -> None:
        if line.startswith("Starting;"):
            signal.raise_signal(signal.SIGINT)

    threading.Thread(target=start, daemon=True).start()
    more = {"settings": (f"runs_dir={tmp_path / 'here'}",), "allow": (str(images),)}
    line = JoinLine.parse(f"127.0.0.1:{harness.server.port}", harness.server.token, **more)
    assert join_run(line, echo) == 130
    harness.wait_for("it was stopped by Ctrl-C")


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


def test_the_config_of_an_older_machine_keeps_its_meaning() -> None:
    older = {**TrainConfig(masked_training=True).model_dump(mode="json"), "version": 1}
    del older["normalize_masked_area_loss"]
    welcome = Welcome(host="zeus", number=1, machines=2, config=older, run_name="x", nonce="n", family="")
    joined = merge_config(JoinLine("10.0.0.1", 12356, "token", ("num_nodes=2",)), welcome, "zeus")
    assert (joined.normalize_masked_area_loss, joined.node_rank) == (True, 1)
