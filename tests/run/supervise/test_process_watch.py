"""Processes that are suspended, frozen or idle, and what watching them costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import psutil
import pytest

from modules import ROOT
from modules.run import RunFolder, read_events
from modules.run.launch.plan import TORCHRUN
from modules.run.supervise.process_tree import ProcessTree
from modules.run.supervise.restart_tracker import RestartTracker
from modules.run.supervise.supervisor import GracePeriods, Supervisor
from tests.run.supervise.supervised import (
    WORKER,
)

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.slow
def test_idle_torchrun_is_killed(folder: RunFolder) -> None:
    code = (
        "import sys, time; from pathlib import Path; from modules.run import EventLog\n"
        "log = EventLog(Path(sys.argv[1])); log.write('phase', phase='training')\n"
        "log.write('finished', reason='finished', exit_code=0); log.close(); time.sleep(300)"
    )
    argv = [sys.executable, "-c", code, str(folder.events_file), str(TORCHRUN)]
    supervisor = Supervisor(argv, folder, grace=GracePeriods(alone_s=0.2, report_s=0.2, finish_s=200.0))
    assert supervisor.run() == 0


def test_a_suspended_run_is_reported(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.run.supervise.restart_tracker._SUSPENDED_AFTER_S", 0.0)
    monkeypatch.setattr("modules.run.supervise.supervisor._HOUSEKEEPING_EVERY_S", 0.05)
    argv = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); os.kill(os.getpid(), 19)"]

    def continue_once_reported() -> None:
        while not (warnings := [event for event in read_events(folder.events_file) if event["type"] == "warning"]):
            time.sleep(0.02)
        words = str(warnings[0]["message"]).split()
        os.kill(int(words[words.index("-CONT") + 1].rstrip("`")), signal.SIGCONT)

    thread = threading.Thread(target=continue_once_reported)
    thread.start()
    assert Supervisor(argv, folder).run() == 0
    thread.join()


SPAWNING = """
import subprocess, sys, time
ranks = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)", "spawn_main"]) for _ in range(2)]
print(*(rank.pid for rank in ranks), flush=True)
time.sleep(100)
"""


def test_spawned_ranks_that_are_all_suspended_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others notice one that is suspended; nobody is left to notice that all are."""
    monkeypatch.setattr("modules.run.supervise.restart_tracker._SUSPENDED_AFTER_S", 0.0)
    tree = ProcessTree()
    tracker = RestartTracker(tree, [])
    environment = {**os.environ, **tree.variables}
    with subprocess.Popen([sys.executable, "-c", SPAWNING], env=environment, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        ranks = [int(word) for word in launcher.stdout.readline().split()]
        try:
            for rank in ranks:
                assert tracker.suspended_rank(launcher.pid, first_rank=2) is None
                psutil.Process(rank).suspend()
            while any(psutil.Process(rank).status() != psutil.STATUS_STOPPED for rank in ranks):
                time.sleep(0.01)
            tracker.suspended_rank(launcher.pid, first_rank=2)
            failure = tracker.suspended_rank(launcher.pid, first_rank=2)
        finally:
            tree.kill()
    assert failure is not None
    assert (failure.rank, failure.kind) == (2, "stopped")
    assert "is stopped (state T)" in failure.message


FREEZER = Path("/sys/fs/cgroup/freezer")
WAITS_FOR_FROZEN_RANK = """
import subprocess, sys; from pathlib import Path
from modules.run import Failure, RunFolder, record_failure
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
group = Path(sys.argv[2])
(group / "cgroup.procs").write_text(str(rank.pid))
(group / "freezer.state").write_text("FROZEN")
record_failure(RunFolder(Path(sys.argv[1])), Failure(1, "a", "stopped", "in state D"))
rank.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="only root may freeze processes, with cgroups of version 1")
def test_a_rank_that_cannot_be_killed_is_not_waited_for(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("modules.run.supervise.supervisor._HOUSEKEEPING_EVERY_S", 0.05)
    group = FREEZER / f"tandem-{os.getpid()}"
    group.mkdir()
    try:
        argv = [sys.executable, "-c", WAITS_FOR_FROZEN_RANK, str(folder.path), str(group)]
        environment = {"PYTHONPATH": str(WORKER.parents[3])}
        patient = GracePeriods(failure_s=1000.0)
        assert Supervisor(argv, folder, ranks=range(2), environment=environment, grace=patient).run() == 3
        assert "rank 1 on a failed" in capfd.readouterr().err
    finally:
        (group / "freezer.state").write_text("THAWED")
        while (group / "cgroup.procs").read_text():
            time.sleep(0.02)
        group.rmdir()


REPLAY = """
import json, sys, time
rank = {"host": "alpha", "step_s": 0.2, "data_s": 0.01, "own_s": 0.15, "memory_used_mib": 20_000, "power_w": 300.5}
ranks = json.dumps({"v": 1, "t": 1.0, "type": "ranks", "ranks": [{"rank": n, **rank} for n in range(16)]})
with open(sys.argv[1], "a") as file:
    for step in range(5_000):
        file.write(json.dumps({"v": 1, "t": 1.0, "type": "step", "step": step, "loss": 0.123456, "lr": 1e-4}) + "\\n")
        if step % 10 == 0:
            file.write(ranks + "\\n")
    file.write(json.dumps({"v": 1, "t": 1.0, "type": "finished", "exit_code": 0}) + "\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc counts the bytes that a process has read")
def test_the_supervisor_keeps_no_events_and_reads_each_once(folder: RunFolder) -> None:
    """In a process of its own: tracemalloc and /proc count what all threads of a process do."""
    folder.events_file.write_text('{"type":"step","step":1}\n')
    code = f"from tests.run.supervise.test_process_watch import replay; replay({str(folder.path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def replay(path: str) -> None:
    """Supervise a program that writes 5,000 steps; assert what that reads and keeps."""
    folder = RunFolder(Path(path))
    argv = [sys.executable, "-c", REPLAY.replace("\\\\", "\\"), str(folder.events_file)]
    before = _bytes_read()
    tracemalloc.start()
    supervisor = Supervisor(argv, folder)
    assert supervisor.run() == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = folder.events_file.stat().st_size
    assert size > 1 << 20
    assert peak < 1 << 20, f"{peak:,} bytes"
    read = _bytes_read()
    for _ in range(50):
        supervisor._watch.read_progress(0.0)
    assert _bytes_read() - read < 4096, "an unchanged file is not read again"
    assert read - before < size * 1.3 + (1 << 20)


def _bytes_read() -> int:
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])
