"""The pidfile of a launcher, and killing all processes of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil

from modules import ROOT
from modules.run import RunFolder
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
    process = subprocess.Popen(SLEEPER)
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


def test_orphans_are_found_by_folder_and_killed(folder: RunFolder) -> None:
    """As after `kill -9` of the launcher: nothing refers to them any more."""
    environment = {**os.environ, "TANDEM_START": "0123456789abcdef"}
    rank = subprocess.Popen([*SLEEPER, "--run_folder", str(folder.path)], env=environment)
    helper = subprocess.Popen(SLEEPER, env=environment)  # a loader worker, whose command line does not name the run
    unrelated = subprocess.Popen([*SLEEPER, "--run_folder", f"{folder.path}-other"], cwd=ROOT)
    try:
        deadline = time.monotonic() + 30
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
