"""A window that is opened later finds the launcher of a run, and can end all of its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil

from modules.run import RunFolder
from modules.run.end_at_once import end_at_once
from modules.run.launcher_mark import launcher_marked, launcher_of, mark_launcher
from tests.runs import ROOT

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_the_launcher_is_known_while_it_lives(folder: RunFolder) -> None:
    assert launcher_of(folder) is None
    with launcher_marked(folder):
        found = launcher_of(folder)
        assert found is not None
        assert found.process.pid == os.getpid()
        assert abs(found.marked - time.time()) < 60
    assert launcher_of(folder) is None


def test_a_number_that_was_given_to_another_process_is_no_launcher(folder: RunFolder) -> None:
    process = subprocess.Popen(SLEEPER)
    try:
        mark_launcher(folder, process.pid)
        assert launcher_of(folder) is not None
        file = folder.log_dir / "launcher.json"
        mark = json.loads(file.read_text())
        for change in ({"started": mark["started"] - 1000}, {"host": "elsewhere"}, {"pid": "x"}):
            file.write_text(json.dumps({**mark, **change}))
            assert launcher_of(folder) is None
        for text in ("", "{", "7", "{}", "[" * 100_000):
            file.write_text(text)
            assert launcher_of(folder) is None
        file.write_text(json.dumps(mark))
        assert launcher_of(folder) is not None
    finally:
        process.kill()
        process.wait()
    assert launcher_of(folder) is None


def test_orphans_of_a_run_are_found_by_their_folder_and_ended(folder: RunFolder) -> None:
    """As after `kill -9` of the launcher: nobody holds their numbers any more."""
    environment = {**os.environ, "TANDEM_START": "0123456789abcdef"}
    rank = subprocess.Popen([*SLEEPER, "--run_folder", str(folder.path)], env=environment)
    helper = subprocess.Popen(SLEEPER, env=environment)  # a loader worker, whose command line does not say whose it is
    stranger = subprocess.Popen([*SLEEPER, "--run_folder", f"{folder.path}-other"], cwd=ROOT)
    try:
        deadline = time.monotonic() + 30
        while psutil.Process(rank.pid).cmdline()[-1:] != [str(folder.path)]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        end_at_once(folder)
        assert rank.wait(30) != 0
        assert helper.wait(30) != 0
        assert stranger.poll() is None
    finally:
        for process in (rank, helper, stranger):
            process.kill()
            process.wait()
