"""The pidfile of a launcher, and killing all processes of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from modules import ROOT
from modules.run import RunFolder
from modules.run.folder.commands import Commands
from modules.run.folder.event_reader import EventReader
from modules.run.folder.failures import Failure, read_failures, record_failure
from modules.run.folder.pidfile import find_launcher, pidfile_held, write_pidfile
from modules.run.supervise.force_stop import force_stop

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_launcher_is_found_while_alive(folder: RunFolder) -> None:
    assert find_launcher(folder) is None
    with pidfile_held(folder):
        found = find_launcher(folder)
        assert found is not None
        assert found.process.pid == os.getpid()
        assert abs(found.marked_at - time.time()) < 60
    assert find_launcher(folder) is None


def test_reused_pid_is_not_the_launcher(folder: RunFolder) -> None:
    process = subprocess.Popen([*SLEEPER, "--start_in", os.path.relpath(folder.path)])
    try:
        write_pidfile(folder, process.pid)
        assert find_launcher(folder) is not None
        file = folder.log_dir / "launcher.json"
        content = json.loads(file.read_text())
        for change in ({"started": content["started"] - 1000}, {"host": "elsewhere"}, {"pid": "x"}):
            file.write_text(json.dumps({**content, **change}))
            assert find_launcher(folder) is None
        for text in ("", "{", "7", "{}", "[" * 100_000):
            file.write_text(text)
            assert find_launcher(folder) is None
        file.write_text(json.dumps(content))
        assert find_launcher(folder) is not None
    finally:
        process.kill()
        process.wait()
    assert find_launcher(folder) is None


def test_a_clock_that_is_set_does_not_lose_the_launcher(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil's times of start follow the clock: they count from the time of boot, which is today's minus the uptime."""
    with pidfile_held(folder):
        before = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: before(process) - 7200)
        assert find_launcher(folder) is not None


def test_a_foreign_folder_cannot_have_another_process_stopped(folder: RunFolder, tmp_path: Path) -> None:
    victims = [subprocess.Popen(SLEEPER), subprocess.Popen([*SLEEPER, "--start_in", str(tmp_path / "other run")])]
    try:
        for victim in victims:
            write_pidfile(folder, victim.pid)  # with the right host and start time
            assert find_launcher(folder) is None
            force_stop(folder, patience_s=0.1)
            assert victim.poll() is None
    finally:
        for victim in victims:
            victim.kill()
            victim.wait()


def test_what_is_no_file_does_not_block_the_reader(folder: RunFolder) -> None:
    os.mkfifo(folder.log_dir / "launcher.json")
    os.mkfifo(folder.failure_file(0))
    os.mkfifo(folder.events_file)
    os.mkfifo(folder.commands_dir / "stop")
    assert find_launcher(folder) is None
    assert read_failures(folder) == []
    assert EventReader(folder.events_file).new() == []
    assert Commands(folder).pending() == {}


@pytest.mark.parametrize(
    "change", [{"time": "x"}, {"rank": -1}, {"rank": 1.5}, {"message": None}, {"host": []}, {"time": -1}]
)
def test_a_malformed_failure_is_skipped_and_the_others_are_read(folder: RunFolder, change: dict[str, object]) -> None:
    record_failure(folder, Failure(1, "alpha\x1b[2J", "crash", "It\x07 failed."))
    content = json.loads(folder.failure_file(1).read_text())
    folder.failure_file(0).write_text(json.dumps({**content, **change}))
    folder.failure_file(2).write_text(folder.failure_file(1).read_text().replace('"time": ', '"time": 1e999, "x": '))
    [failure] = read_failures(folder)
    assert (failure.rank, failure.host, failure.message) == (1, "alpha\\x1b[2J", "It\\x07 failed.")


def test_orphans_are_found_by_folder_and_killed(folder: RunFolder) -> None:
    """As after `kill -9` of the launcher: nothing refers to them any more."""
    environment = {**os.environ, "TANDEM_START": "0123456789abcdef"}
    rank = subprocess.Popen([*SLEEPER, "--run_folder", str(folder.path)], env=environment)
    helper = subprocess.Popen(SLEEPER, env=environment)  # a loader worker, whose command line does not name the run
    unrelated = subprocess.Popen([*SLEEPER, "--run_folder", f"{folder.path}-other"], cwd=ROOT)
    try:
        deadline = time.monotonic() + 100
        while psutil.Process(rank.pid).cmdline()[-1:] != [str(folder.path)]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        force_stop(folder)
        assert rank.wait(30) != 0
        assert helper.wait(30) != 0
        assert unrelated.poll() is None
    finally:
        for process in (rank, helper, unrelated):
            process.kill()
            process.wait()
