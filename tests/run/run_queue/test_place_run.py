"""Entries that wait for another machine, whose ssh is a shell here."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.config import ConfigError, save_config
from modules.run import RunFolder
from modules.run.folder.pidfile import pidfile_held, write_pidfile
from modules.run.hosts.description import describe_this_machine
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host, find_hosts, remove_host
from modules.run.hosts.remote_machines import host_log
from modules.run.hosts.ssh_command import Unreachable
from modules.run.queue import place_run, places
from modules.run.queue.active_run import resources_in_use
from modules.run.queue.entries import Entry, Resources
from modules.run.queue.folder import RunQueue
from modules.run.queue.place_run import PlaceRun, progress_of
from modules.run.queue.places import Places
from modules.run.queue.runner import QueueRunner
from modules.run.remote import after_run, attendant
from modules.run.remote.attendant import attend
from modules.run.remote.kept_commands import keep_command, kept_command
from modules.run.remote.run_copy import Copy, mark_copy, read_copy
from scripts import run_queue
from tests.conftest import draw_images
from tests.runs import tiny_config

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for ssh is a shell script")
_WAITS = """#!/bin/sh
for last; do :; done
test -e {off} && echo 'ssh: connect to host beta port 22: No route to host' >&2 && exit 255
exec sh -c "$last"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tandem's folder on beta, which cannot be reached while there is a file "off"."""
    place, ssh = tmp_path / "there", tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(_WAITS.format(off=tmp_path / "off"))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(attendant, "described", lambda host: (describe_this_machine(),) * 2)
    (place / "code" / "scripts").mkdir(parents=True)
    (place / "code" / "scripts" / "train.py").write_text("")
    (place / ".tandem").write_text("")
    (place / "state").mkdir()
    add_host(Host.make("beta", "me@beta", f"{place}/code", python=sys.executable))
    return place


@pytest.fixture
def queue(tmp_path: Path) -> RunQueue:
    return RunQueue(tmp_path / "runs")


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    (tmp_path / "images").mkdir()
    config = tiny_config(draw_images(tmp_path / "images", 2), tmp_path, family="classifier", run_name="cats")
    save_config(config, tmp_path / "cats.json")
    return str(tmp_path / "cats.json")


@pytest.fixture
def no_attendant(monkeypatch: pytest.MonkeyPatch) -> list[RunFolder]:
    """Those that would have been launched."""
    launched: list[RunFolder] = []

    def launch(folder: RunFolder) -> None:
        launched.append(folder)

    monkeypatch.setattr(place_run, "launch_attendant", launch)
    return launched


def known(found: Callable[[], str | None]) -> str:
    """What is known of a machine, once it has answered."""
    deadline = time.monotonic() + 60
    while (said := found()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return said


def entry_on_beta(number: int = 1, name: str = "cats", devices: list[int] | None = None, **values: object) -> Entry:
    entry = Entry(number=number, name=name, devices=devices, place="beta", added=1.0)
    return entry.changed(**values)


def test_entries_of_different_places_do_not_wait_for_each_other() -> None:
    on_beta = Resources(None, place="beta")
    assert on_beta.overlaps(Resources([1], place="beta"))
    assert not on_beta.overlaps(Resources(None))
    assert not Resources(None).overlaps(on_beta)
    assert not Resources([0], place="beta").overlaps(Resources([1], place="beta"))
    assert not on_beta.overlaps(Resources(None, place="gamma"))
    assert on_beta.overlaps(Resources([0], ["beta"])), "a run here that starts that machine"
    assert Resources([0], ["beta"]).overlaps(on_beta)
    with_beta = Resources(None, ["beta"], "gamma")
    assert with_beta.overlaps(on_beta), "which joins a run on gamma"
    assert on_beta.overlaps(with_beta)
    assert not with_beta.overlaps(Resources(None))


def test_what_is_added(
    home: Path, queue: RunQueue, config_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPUs that this computer has not; not what cannot be started there, but what cannot be asked."""

    def add(*words: str) -> tuple[int, str]:
        code = run_queue.main(["add", config_file, "--runs_dir", str(queue.runs_dir), *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert add("--on", "beta", "--devices", "40,41", "--multi_gpu", "--send_token")[0] == 0
    entry = queue.read().entry(1)
    assert (entry.place, entry.devices, entry.sends_token) == ("beta", [40, 41], True)
    assert queue.load(entry).enable_multi_gpu
    assert run_queue.main(["devices", "1", "7", "--runs_dir", str(queue.runs_dir)]) == 0
    assert queue.load(queue.read().entry(1)).device_ids == (7,)
    assert run_queue.main(["list", "--runs_dir", str(queue.runs_dir)]) == 0
    assert "beta: 7" in capsys.readouterr().out
    for words, code, said in (
        (["--on", "delta"], 2, "no machine is named 'delta'; the list has: beta"),
        (["--on", "beta", "--hosts", "beta"], 2, "--on and --hosts are both given"),
        (["--send_token"], 2, "--send_token is given without --on"),
        (["--on", "beta", "--set", "num_nodes=2", "--multi_gpu"], 2, "Set num_nodes=1, or name those that join it"),
        (["--with", "beta"], 2, "--with is given without --on"),
        (["--on", "beta", "--with", "delta"], 2, "no machine is named 'delta'; the list has: beta"),
        (["--on", "beta", "--with", "beta"], 2, "beta and beta are the same machine"),
    ):
        assert (found := add(*words))[0] == code, found
        assert said in found[1]
    (home / "runs" / "cats-2" / "log").mkdir(parents=True)  # cats is taken by the first one
    (home / "runs" / "cats-2" / "log" / "console.txt").write_text("before")
    assert "a run cats-2 is there already" in add("--on", "beta")[1]
    (tmp_path / "off").touch()
    code, said = add("--on", "beta")
    assert code == 0
    assert "No route to host" in said
    assert "The entry waits until there is a connection." in said
    add_host(Host.make("gamma", "me@gamma", f"{home}/code", python=sys.executable))
    assert "Entry 3 (cats-3) waits for beta with gamma at place 3" in add("--on", "beta", "--with", "gamma")[1]
    entry = queue.read().entry(3)
    assert (entry.place, entry.hosts, entry.devices_text) == ("beta", ["gamma"], "beta: all + gamma")
    assert queue.load(entry).num_nodes == 2
    assert queue.entries_for("gamma") == [entry]
    (tmp_path / "off").unlink()
    (home / ".tandem").unlink()
    assert "start with setup" in add("--on", "beta")[1]
    assert [each.place for each in queue.read().entries] == ["beta"] * 3


def test_machines_that_join_its_run(
    home: Path, queue: RunQueue, config_file: str, tmp_path: Path, no_attendant: list[RunFolder]
) -> None:
    add_host(Host.make("gamma", "me@gamma", f"{home}/code", python=sys.executable))
    (tmp_path / "off").touch()
    assert (
        run_queue.main(["add", config_file, "--runs_dir", str(queue.runs_dir), "--on", "beta", "--with", "gamma"]) == 0
    )
    entry = queue.read().entry(1)
    run = PlaceRun.start(queue, entry, entry.changed(state="running", started=2.0))
    copy = read_copy(run.folder)
    assert copy is not None
    assert (copy.machine, copy.joined) == ("beta", ["gamma"])
    assert no_attendant == [run.folder]
    assert run.resources == Resources(None, ["gamma"], "beta")
    remove_host("gamma")
    with pytest.raises(ConfigError, match="no machine is named 'gamma'"):
        PlaceRun.start(queue, entry, entry)


def test_what_is_in_the_way_there(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another computer, unless it takes other GPUs; no connection; a machine that has left the list."""
    found = Places()

    def why(entry: Entry, *own: str) -> str:
        found.forget(entry)
        return known(lambda: found.why_not(entry, dict.fromkeys(own, (entry.place,))))

    assert why(entry_on_beta()) == ""
    (home / "runs" / "theirs").mkdir(parents=True)
    (home / "runs" / "theirs" / "config.json").write_text(json.dumps({"device_ids": [0]}))
    with (home / "state" / "theirs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert why(entry_on_beta()) == "the run theirs is active on beta"
        assert why(entry_on_beta(devices=[0, 1])) == "the run theirs is active on beta"
        assert why(entry_on_beta(devices=[1])) == ""
        assert why(entry_on_beta(), "theirs") == ""
        elsewhere = known(lambda: found.why_not(entry_on_beta(), {"theirs": ("gamma",)}))
        assert elsewhere == "the run theirs is active on beta", "another one of this name"
        beta = find_hosts(["beta"])[0]
        add_host(beta.model_copy(update={"slurm": ["--gpus=4"]}))
        assert why(entry_on_beta()) == "", "Slurm orders its jobs itself"
        add_host(beta)
    add_host(Host.make("gamma", "me@gamma", f"{home.parent}/gamma/code", python=sys.executable))
    (home.parent / "gamma" / "runs").mkdir(parents=True)
    (home.parent / "gamma" / ".tandem").touch()
    with (home / "push.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert why(entry_on_beta()) == "data is being sent to beta"
        joined = entry_on_beta(place="gamma", hosts=["beta"])
        assert why(joined) == "data is being sent to beta", "which is to join a run on gamma"
        assert why(entry_on_beta(place="gamma")) == ""
    (tmp_path / "off").touch()
    assert why(entry_on_beta()).startswith("there is no connection to beta: ")
    remove_host("beta")
    with pytest.raises(ConfigError, match="no machine is named 'beta'"):
        why(entry_on_beta())


def test_an_entry_waits_for_a_connection_and_others_go_on(
    home: Path,
    queue: RunQueue,
    config_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_attendant: list[RunFolder],
) -> None:
    """It says so; one whose machine has left the list fails with its name."""
    monkeypatch.setattr(places, "_CONNECTED_EVERY_S", 1.0)
    add_host(Host.make("gamma", "me@gamma", f"{home}/code", python=sys.executable))
    for place in ("beta", "gamma"):
        assert run_queue.main(["add", config_file, "--runs_dir", str(queue.runs_dir), "--on", place]) == 0
    remove_host("gamma")
    (tmp_path / "off").touch()
    said: list[str] = []
    thread = threading.Thread(target=QueueRunner(queue, said.append).run, daemon=True)
    thread.start()

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, (said, queue.read().entries)
            time.sleep(0.02)

    until(lambda: queue.read().entry(2).state == "failed" and queue.read().entry(1).waits)
    assert "no machine is named 'gamma'" in queue.read().entry(2).reason
    waits = queue.read().entry(1)
    assert waits.state == "waiting"
    assert waits.waits.startswith("There is no connection to beta: ")
    (tmp_path / "off").unlink()
    until(lambda: no_attendant)
    thread.join(60)  # no attendant has come about, so the entry has ended
    ended = queue.read().entry(1)
    assert (ended.state, ended.reason) == ("stopped", "Its data was not all sent to beta")


def test_a_run_is_followed_to_its_end(
    queue: RunQueue, home: Path, config_file: str, no_attendant: list[RunFolder]
) -> None:
    """What an entry says of its run, what it takes, and how it has ended, by what the copy says."""
    folder = queue.run_folder(entry := entry_on_beta(state="running", started=1.0))
    folder.make_directories()
    run = PlaceRun(entry, folder)
    step = '{"t": 1.0, "type": "started"}\n{"t": 2.0, "type": "step", "step": 20, "loss": 0.125}\n'
    for copy, said, is_preparing, takes in (
        (Copy(machine="beta", stage="sending", done=0.4), "sending to beta (40 %)", True, entry.resources),
        (Copy(machine="beta"), "on beta: starting", True, entry.resources),
        (Copy(machine="beta"), "on beta: step 20, loss 0.125", False, entry.resources),
        (Copy(machine="beta", said="off"), "no connection to beta: off", False, entry.resources),
        (Copy(machine="beta", stage="pulling", code=0), "getting results from beta", False, None),
    ):
        mark_copy(folder, copy)
        assert progress_of(entry, folder) == said
        assert (run.is_preparing, run.resources) == (is_preparing, takes)
        if said.endswith("starting"):
            folder.events_file.write_text(step)
    for copy, code, state, reason in (
        (Copy(machine="beta", stage="complete", code=0), 0, "finished", "Finished"),
        (Copy(machine="beta", stage="complete", code=0, fault="the command"), 0, "finished", "Finished"),
        (Copy(machine="beta", stage="complete", code=130), 130, "stopped", "It ended with exit code 130"),
        (Copy(machine="beta", stage="complete", code=4), 4, "failed", "It ended with exit code 4"),
        (
            Copy(machine="beta", stage="complete"),
            None,
            "failed",
            "It was killed on beta, or that machine was restarted",
        ),
        (Copy(machine="beta", stage="running", fault="a key"), None, "failed", "a key"),
        (Copy(machine="beta", stage="pulling"), 130, "stopped", "Its results are still on beta"),
    ):
        mark_copy(folder, copy)
        ended = run.ended()
        assert (ended.exit_code, ended.state, ended.reason) == (code, state, reason)


def test_what_is_started_again(
    queue: RunQueue, home: Path, config_file: str, no_attendant: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has ended is resumed there, unless it has finished; one that is there already is only followed."""
    assert run_queue.main(["add", config_file, "--runs_dir", str(queue.runs_dir), "--on", "beta"]) == 0
    entry = queue.read().entry(1)
    folder = PlaceRun.start(queue, entry, entry.changed(state="running", started=5.0)).folder
    first = Copy(machine="beta", stage="sending", attended=True, queued=True)
    assert read_copy(folder) == first
    entry = queue.read().entry(1)
    assert (entry.state, entry.started) == ("running", 5.0)
    for before, after in (
        (Copy(machine="beta", stage="running", id="1", fault="x"), Copy(machine="beta", id="1", fault="x")),
        (Copy(machine="beta", stage="complete", id="1", code=130), first.model_copy(update={"resumes": True})),
    ):
        mark_copy(folder, before)
        (folder.commands_dir / "stop").touch()
        PlaceRun.start(queue, entry, entry)
        assert read_copy(folder) == after
        assert not (folder.commands_dir / "stop").exists(), "an earlier stop is not meant"
    assert len(no_attendant) == 3
    mark_copy(folder, ended := Copy(machine="beta", stage="complete", id="1", code=130))
    with pidfile_held(folder), pytest.raises(ConfigError, match="another program is at work"):
        PlaceRun.start(queue, entry, entry)  # it is resumed here
    assert read_copy(folder) == ended
    mark_copy(folder, finished := Copy(machine="beta", stage="complete", id="1", code=0))
    queue.edit(lambda found: found.with_entry(entry.changed(state="finished", exit_code=0)))
    assert run_queue.main(["retry", "1", "--runs_dir", str(queue.runs_dir)]) == 0
    assert "Entry 1 (cats) waits again.\nNote: its run has finished" in capsys.readouterr().out
    assert QueueRunner(queue, print).run() == 0
    assert queue.read().entry(1).reason == "It had finished on beta before, so nothing was trained"
    assert (read_copy(folder), len(no_attendant)) == (finished, 3)


def attendant_of(folder: RunFolder) -> subprocess.Popen[bytes]:
    """A program that shows itself as one."""
    process = subprocess.Popen(
        [sys.executable, "-c", "input()", "--run_folder", str(folder.path)], stdin=subprocess.PIPE
    )
    write_pidfile(folder, process.pid)
    return process


@pytest.fixture
def attendants(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    launched: list[subprocess.Popen[bytes]] = []

    def launch(folder: RunFolder) -> subprocess.Popen[bytes]:
        launched.append(attendant_of(folder))
        return launched[-1]

    monkeypatch.setattr(place_run, "launch_attendant", launch)
    yield launched
    for each in launched:
        each.kill()
        each.communicate()


def test_an_attendant_that_is_killed_is_launched_again(
    queue: RunQueue, attendants: list[subprocess.Popen[bytes]]
) -> None:
    """By the queue that takes a run over, and when it is killed later; not if somebody has asked it to end."""
    folder = queue.run_folder(entry := entry_on_beta(state="running", started=1.0))
    folder.make_directories()
    mark_copy(folder, Copy(machine="beta", stage="complete", code=0))
    assert PlaceRun.taken_over(entry, folder) is None
    mark_copy(folder, Copy(machine="beta", id="1"))
    run = PlaceRun.taken_over(entry, folder)
    assert run is not None
    for count in (1, 2):
        assert run.is_alive
        assert len(attendants) == count
        attendants[-1].kill()
        attendants[-1].wait()
    assert run.is_alive
    run.stop(signal.SIGINT)
    assert (folder.commands_dir / "stop").exists(), "it is asked there"
    assert run.is_alive
    attendants[-1].terminate()
    attendants[-1].wait()
    assert not run.is_alive, "killed three times"
    run = PlaceRun.taken_over(entry, folder)
    assert run is not None
    attendants[-1].terminate()
    attendants[-1].wait()
    assert not run.is_alive, "as Stop following in the window does"
    assert run.ended().reason == "It goes on on beta, and is not followed"


def test_stops(queue: RunQueue, attendants: list[subprocess.Popen[bytes]]) -> None:
    """First after a backup, or before it is sent; then at once, or without a connection only here."""
    folder = queue.run_folder(entry := entry_on_beta(state="running", started=1.0))
    folder.make_directories()
    for copy, stops, asked in (
        (Copy(machine="beta", stage="sending"), 1, []),
        (Copy(machine="beta"), 2, ["force_stop", "stop"]),
        (Copy(machine="beta", said="no connection"), 2, ["stop"]),
        (Copy(machine="beta", stage="pulling"), 2, []),
    ):
        mark_copy(folder, copy)
        run = PlaceRun.taken_over(entry, folder)
        assert run is not None
        for _ in range(stops - 1):
            run.stop(signal.SIGINT)
            assert run.is_alive, "of results on their way nothing is lost"
        run.stop(signal.SIGINT)
        assert sorted(each.name for each in folder.commands_dir.iterdir()) == asked
        if "force_stop" not in asked:
            assert attendants[-1].wait(60) == -signal.SIGTERM
            assert not run.is_alive
            ended = run.ended()
            assert (ended.was_stopped, ended.is_left) == (True, True), "it waits again"
        attendants[-1].kill()
        attendants[-1].wait()
        for each in folder.commands_dir.iterdir():
            each.unlink()


def test_an_attendant_of_the_queue_waits_for_a_connection(
    home: Path, queue: RunQueue, config_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    no_attendant: list[RunFolder],
) -> None:  # fmt: skip
    """Also after the machine was asked whether it is free, and while somebody cleans it; the exit code is kept, and a
    retry needs no backup there."""
    train = home / "code" / "scripts" / "train.py"
    train.write_text("import sys; print(sys.argv[1:]); sys.exit(4)")
    add = ["add", config_file, "--runs_dir", str(queue.runs_dir), "--on", "beta"]
    assert run_queue.main(add) == 0
    entry = queue.read().entry(1)
    folder = PlaceRun.start(queue, entry, entry.changed(state="running", started=5.0)).folder
    off, said = tmp_path / "off", list[str]()
    off.touch()
    with (home / "use.lock").open("w") as cleaning:
        fcntl.flock(cleaning, fcntl.LOCK_EX)

        def sleep(_seconds: float) -> None:
            copy = read_copy(folder)
            assert copy is not None
            if copy.stage == "sending" and "there is a connection" in copy.said:
                said.append(copy.said)
                off.unlink()
            elif "being cleaned" in copy.said and said[-1] != copy.said:
                said.append(copy.said)
                fcntl.flock(cleaning, fcntl.LOCK_UN)

        def clean_after(line: str) -> None:
            if line.startswith("It has ended after"):
                fcntl.flock(cleaning, fcntl.LOCK_EX)

        monkeypatch.setattr(time, "sleep", sleep)
        attend(folder.path, clean_after)
    assert "No route to host" in said[0]
    assert [each.partition(" says: ")[2] for each in said[1:]] == [
        "this machine is being cleaned; try again after that. Trying again until that is over.",
        "this machine is being cleaned; try again after that.",
    ]
    copy = read_copy(folder)
    assert copy is not None
    assert (copy.stage, copy.code) == ("complete", 4)
    queue.edit(lambda found: found.with_entry(found.entry(1).changed(state="failed", exit_code=4)))
    queue.retry(1)
    queue.set_devices(1, [3])
    PlaceRun.start(queue, queue.read().entry(1), queue.read().entry(1))
    attend(folder.path, lambda line: None)
    again = (folder.log_dir / "console.txt").read_text().splitlines()[-1]
    assert "'--resume', 'latest'" in again
    assert "'--set', 'device_ids=[3]'" in again
    off.touch()
    mark_copy(folder, Copy(machine="beta", stage="sending", attended=True))
    with pytest.raises(Unreachable):
        attend(folder.path, lambda line: None)  # of the window, where somebody looks on


def test_copies_of_runs_there_take_nothing_here(tmp_path: Path, config_file: str) -> None:
    folder = RunFolder(tmp_path / "runs" / "x")
    folder.make_directories()
    mark_copy(folder, Copy(machine="beta"))
    with pidfile_held(folder):
        assert resources_in_use(tmp_path / "runs", set()) == {"x": Resources(None, (), "beta")}
        mark_copy(folder, Copy(machine="beta", stage="complete"))  # resumed here
        assert resources_in_use(tmp_path / "runs", set()) == {"x": Resources(None, ())}
        folder.config_file.write_text(json.dumps({"num_nodes": 2}))
        for joined in (["alpha"], []):  # then it goes on without alpha, whose log is left
            mark_copy(folder, Copy(machine="beta", joined=joined))
            assert resources_in_use(tmp_path / "runs", set()) == {"x": Resources(None, tuple(joined), "beta")}
            host_log(folder, "alpha").touch()


def test_the_command_of_a_machine_waits_for_the_queue(
    home: Path, queue: RunQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the machine would be switched off between two entries."""
    host = Host.make("beta", "me@beta", f"{home}/code", then=f"touch {tmp_path / 'off'}")
    folder = queue.run_folder(first := entry_on_beta(1, "cats"))
    folder.make_directories()
    mark_copy(folder, Copy(machine="beta", stage="complete", id="1"))
    keep_command("1", host)
    second = entry_on_beta(2, "dogs")
    queue.edit(lambda found: found.model_copy(update={"entries": [first, second], "next_number": 3}))
    said: list[str] = []
    monkeypatch.setattr(RunQueue, "has_runner", lambda queue: True)
    after_run.run_command_after(folder, host, "latest", said.append)
    assert said == ["The command after cats has not run yet: entry 2 (dogs) of the queue is to run on beta, and it "
                    "runs after that one."]  # fmt: skip
    assert kept_command("1") is not None
    assert not (tmp_path / "off").exists()
    queue.remove(2)
    after_run.run_command_after(folder, host, "latest", said.append)
    assert (tmp_path / "off").exists()
