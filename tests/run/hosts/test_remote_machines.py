"""Machines that a run has started over ssh: their output, how they end, and how they are stopped."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.machine import PortReservations, Route
from modules.run import start_machines
from modules.run.folder.events import EventLog
from modules.run.folder.run_folder import RunFolder
from modules.run.hosts.host import Host
from modules.run.hosts.remote_machines import (
    OutputFile,
    RemoteMachine,
    RemoteMachines,
    hosts_of_former_run,
    join_arguments,
)
from modules.run.join.server import JoinServer
from modules.run.start_machines import MachinesStart
from modules.run.supervise.signals import termination_signals
from modules.run.supervise.stop_requests import SAME_REQUEST_S
from tests.ports import free_port

BETA = Host.make("beta", "beta", "~/tandem", settings=["concepts.0.path=/data/cats"])
TOKEN = "0" * 32


def ended(tmp_path: Path, script: str) -> RemoteMachine:
    """A machine whose ssh has run a line of sh instead."""
    machine = RemoteMachine(BETA, ["sh", "-c", f"read token; {script}"], tmp_path / "host-beta.txt")
    machine.start(TOKEN)
    while not machine.has_ended:
        time.sleep(0.01)
    machine.close()
    return machine


def test_endless_output_does_not_fill_the_disk(tmp_path: Path) -> None:
    (tmp_path / "printed").write_bytes(b"x" * 100_000 + b"\nthe end\n")
    output = OutputFile(tmp_path / "kept", TOKEN, most_bytes=70_000)
    output.copy((tmp_path / "printed").open("rb"))
    output.close()
    kept = (tmp_path / "kept").read_bytes()
    assert len(kept) <= 70_000
    assert kept.startswith(b"(what was printed before is not kept)\n")
    assert kept.endswith(b"x\nthe end\n")


def test_a_log_that_is_shown_obeys_no_machine_and_tells_no_token(tmp_path: Path) -> None:
    ended(tmp_path, r"printf '%s \033[2J\302\233 \342\200\256\377' $token; printf '\r\nends without a line end'")
    kept = (tmp_path / "host-beta.txt").read_text()
    assert kept == "*** \\x1b[2J\\x9b \\u202e\ufffd\nends without a line end"


def test_why_a_machine_ended_is_what_its_program_says(tmp_path: Path) -> None:
    """Not the lines before it; where the images are is said in its entry."""
    said = "concepts: there is no folder 'data' on this machine."
    error = ended(tmp_path, f'echo Joining the run at x; echo "Training did not start: {said}"; exit 4').why_ended()
    assert error.message == f"beta ended early (exit code 4); it says: {said}"
    assert error.exit_code == 4
    assert "settings in the list of machines, such as concepts.0.path=/data/cats" in error.advice
    cut = ended(tmp_path, "echo Joining the run at x; kill -9 $$").why_ended()
    assert cut.message == "beta ended early (killed, or cut off); its last lines: Joining the run at x"


def test_what_a_machine_chooses_itself_is_not_allowed_to_it(tmp_path: Path) -> None:
    """Its own paths, and where each machine writes, are not machine 0's."""
    for name in ("images", "more", "runs", "cache"):
        (tmp_path / name).mkdir()
    config = TrainConfig.model_validate(
        {
            "concepts": [{"path": str(tmp_path / "images")}, {"path": str(tmp_path / "more")}],
            "runs_dir": str(tmp_path / "runs"),
            "cache_dir": str(tmp_path / "cache"),
        }
    )
    arguments = join_arguments(config, BETA, "10.0.0.1:12356")
    assert [text for text in arguments if text.startswith("--allow")] == [f"--allow={tmp_path / 'more'}"]
    different = join_arguments(config, BETA.model_copy(update={"allow_differences": True}), "10.0.0.1:12356")
    assert "--allow_differences" in different


SSH = """#!/bin/sh
[ "$1" = -G ] || { printf '%s' "$*" > "$(dirname "$0")/asked"; exit; }
cat "$(dirname "$0")/settings"
"""


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands in for ssh")
def test_a_machine_joins_at_the_address_from_which_ssh_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at that of the default route, which may be a VPN's; what the user has set as master_addr stays."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    routes = {"10.77.0.2": Route("eth0", "10.77.0.1"), "beta6": Route("eth0", "fd00::1"), "here": Route("lo", "::1")}
    monkeypatch.setattr("modules.run.hosts.remote_machines.route_to", routes.get)

    def joins_at(settings: str, **config: str) -> str:
        (tmp_path / "settings").write_text(settings)
        machines = RemoteMachines([BETA], tmp_path / "log", lambda _: None)
        machines.start(TrainConfig.model_validate(config), "10.8.0.5:12356", TOKEN)
        machines.finish(60.0)
        (address,) = re.findall(r"--join [\"']*([^\s\"']+)", (tmp_path / "asked").read_text())
        return address

    assert joins_at("user me\nhostname 10.77.0.2\n") == "10.77.0.1:12356"
    assert joins_at("hostname beta6\nproxyjump none\n") == "[fd00::1]:12356"
    for stays in ("hostname here\n", "hostname unknown\n", "", "hostname 10.77.0.2\nproxyjump gate\n"):
        assert joins_at(stays) == "10.8.0.5:12356"
    assert joins_at("hostname 10.77.0.2\n", master_addr="10.8.0.5") == "10.8.0.5:12356"


# Prints how many requests it got, and whether a supervisor there takes the second for another one.
TWO_REQUESTS = f"""
import sys, time
sys.stdin.readline()
lines, times = [], []
for _ in range(2):
    lines.append(sys.stdin.readline().strip())
    times.append(time.monotonic())
print(*lines, times[1] - times[0] > {SAME_REQUEST_S}, flush=True)
"""


def listening_machine(tmp_path: Path) -> tuple[RemoteMachines, RemoteMachine]:
    """One that ends at the second request."""
    machines = RemoteMachines([BETA], tmp_path, lambda _: None)
    machine = RemoteMachine(BETA, [sys.executable, "-c", TWO_REQUESTS], tmp_path / "host-beta.txt")
    machines._machines.append(machine)
    machine.start(TOKEN)
    return machines, machine


def test_ctrl_c_while_waiting_for_a_machine_to_end(tmp_path: Path) -> None:
    """The machine is asked to stop at once, instead of being left running."""
    machines, machine = listening_machine(tmp_path)
    last = termination_signals()[-1]
    before = signal.getsignal(last)

    def interrupt() -> None:
        while signal.getsignal(last) == before:  # finish() does not wait yet
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    machines.finish(60.0)
    thread.join()
    assert machine.exit_code == 0
    assert machine.output().split() == ["stop", "stop", "True"]


def test_a_run_that_was_stopped_at_once_stops_its_machines_at_once(tmp_path: Path) -> None:
    machines, machine = listening_machine(tmp_path)
    machines.finish(60.0, at_once=True)
    assert machine.output().split() == ["stop", "stop", "True"]


def test_a_machine_that_is_no_longer_heard_is_not_waited_for(tmp_path: Path) -> None:
    """Its ssh would notice that only after a minute."""
    said: list[str] = []
    machines = RemoteMachines([BETA], tmp_path, said.append)
    machine = RemoteMachine(BETA, ["sh", "-c", "echo this is machine 3 of 4; sleep 100"], tmp_path / "host-beta.txt")
    machines._machines.append(machine)
    machine.start(TOKEN)
    while machine.number != 3:
        time.sleep(0.01)
    machines.finish(3600.0, lost={3})
    machines.report_unexpected_ends()
    assert said == ["Note: beta can no longer be reached; its part ends by itself there."]


def test_a_lost_machine_is_started_again_until_it_answers_and_a_rejected_one_is_not(tmp_path: Path) -> None:
    said: list[str] = []
    machines = RemoteMachines([BETA], tmp_path, said.append)
    scripts = {"lost": "cut off; exit 255", "rejected": "no images; exit 4", "complete": "the end; exit 0"}
    for name, script in scripts.items():
        log = tmp_path / f"host-{name}.txt"
        counted = f"echo >> {tmp_path / name}; echo Joining the run at x; echo {script}"
        machines._machines.append(RemoteMachine(BETA, ["sh", "-c", counted], log))
        machines._machines[-1].start(TOKEN)
    machines._token = TOKEN
    for _ in range(3):
        while machines._running():
            time.sleep(0.01)
        machines.start_ended(())
    machines.finish(100.0)
    starts = {name: len((tmp_path / name).read_text().splitlines()) for name in scripts}
    assert starts == {"lost": 4, "rejected": 1, "complete": 1}
    (line,) = said
    assert line.startswith("beta ended early (killed, or cut off); its last lines: Joining the run at x\ncut off")
    assert line.endswith("It is started again over ssh, until it answers.")


@pytest.mark.skipif(os.name == "nt", reason="a line of sh stands in for ssh")
def test_a_machine_is_waited_for_as_long_as_it_may_come_back(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_machine_loss=wait: a server that reboots refuses ssh for minutes; then one that has lost its images."""
    monkeypatch.setattr(start_machines, "_TRY_AGAIN_EVERY_S", 0.0)
    several = {"num_nodes": 2, "enable_multi_gpu": True, "on_machine_loss": "wait", "initial_port": free_port()}
    config = TrainConfig.model_validate(
        {**several, "concepts": [{"path": str(images)}], "runs_dir": str(tmp_path / "runs")}
    )
    folder, said = RunFolder.create(config), list[str]()
    start = MachinesStart(config, folder, said.append, EventLog(folder.events_file), [], PortReservations(), [BETA])
    starts = tmp_path / "starts"
    script = f"echo >> {starts}; [ $(wc -l < {starts}) -gt 3 ] && exit 4; exit 255"
    start._remote._token = TOKEN
    start._remote._machines.append(RemoteMachine(BETA, ["sh", "-c", script], tmp_path / "host-beta.txt"))
    start._remote._machines[0].start(TOKEN)
    server = JoinServer(config, "x", lambda message, missing: None, token=TOKEN)
    try:
        assert not start._is_everybody_back(server)
    finally:
        server.close()
        start._remote.finish(100.0)
    assert starts.read_text().count("\n") == 4
    assert "beta ended early (exit code 4)" in said[-1]


def test_machines_that_a_resumed_run_has_started_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert hosts_of_former_run(folder) == []
    folder.log_dir.mkdir()
    for name in ("host-gamma.txt", "host-be.ta.txt", "host-it's.txt", "rank-0.txt"):
        (folder.log_dir / name).touch()
    assert hosts_of_former_run(folder) == ["be.ta", "gamma"]
