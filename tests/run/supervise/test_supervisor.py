"""Real processes under real torchrun: one message, the right exit code, and no process left, whatever a rank does."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from modules import ROOT
from modules.config import ConfigError
from modules.run import RunFolder, read_events, request_command
from modules.run.folder.commands import is_stopped_by_user
from modules.run.launch.plan import TORCHRUN
from modules.run.supervise.grace_periods import GracePeriods
from modules.run.supervise.process_tree import ProcessTree
from modules.run.supervise.restart_tracker import RestartTracker
from modules.run.supervise.stop_requests import StopRequests
from modules.run.supervise.supervisor import Supervisor, any_failure
from tests.ports import free_port

WORKER = Path(__file__).parent / "fake_worker.py"


@pytest.fixture(autouse=True)
def _nothing_is_left(
    folder: RunFolder, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))  # of the processes
    yield
    assert list(temporary.glob("torchelastic*")) == [], "torchrun makes a folder at each start"
    time.sleep(0.05)
    left = [
        process.cmdline()
        for process in psutil.process_iter()
        if process.pid != os.getpid() and str(folder.path) in " ".join(_cmdline(process))
    ]
    assert left == []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def torchrun(folder: RunFolder, *roles: str) -> list[str]:
    options = [f"--nproc_per_node={len(roles)}", "--nnodes=1", "--master_addr=127.0.0.1"]
    port = f"--master_port={free_port()}"
    return [
        sys.executable,
        str(TORCHRUN),
        *options,
        port,
        str(WORKER),
        str(folder.path),
        *roles,
    ]


def supervise(folder: RunFolder, *roles: str, grace_s: float = 2.0) -> int:
    environment = {"OMP_NUM_THREADS": "1"}
    argv = torchrun(folder, *roles)
    ranks = range(len(roles))
    return Supervisor(argv, folder, environment=environment, ranks=ranks, grace=GracePeriods(failure_s=grace_s)).run()


def supervise_in_subprocess(
    folder: RunFolder, *argv: str, ranks: range = range(2), late_signal: int = 0
) -> subprocess.Popen[str]:
    """The supervisor in a separate process, which can receive signals; one of them after the run has ended."""
    code = (
        "import signal, sys; from pathlib import Path; from modules.run import RunFolder; "
        "from modules.run.supervise.signals import ignore_signals_after_stop; "
        "from modules.run.supervise.supervisor import Supervisor; ignore_signals_after_stop(); "
        f"code = Supervisor(sys.argv[2:], RunFolder(Path(sys.argv[1])), ranks={ranks!r}).run(); "
        f"{late_signal} and signal.raise_signal({late_signal}); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, str(folder.path), *argv]
    root = str(WORKER.parents[3])
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def wait_until_started(folder: RunFolder, count: int) -> None:
    give_up = time.monotonic() + 30
    while len(list(folder.log_dir.glob("started-*"))) < count:
        assert time.monotonic() < give_up, folder.launcher_log.read_text()
        time.sleep(0.02)
    time.sleep(0.2)


def last_finished(folder: RunFolder) -> dict[str, object]:
    return [event for event in read_events(folder.events_file) if event["type"] == "finished"][-1]


def leave_half_written(folder: RunFolder) -> None:
    """What a kill may leave: a backup that was being replaced, and parts of another one, of a model and of an image."""
    for name in ("backup/.partial-former-step-000003", "backup/.partial-step-000004", ".partial-model"):
        (folder.path / name).mkdir(parents=True)
        (folder.path / name / "weights.safetensors").write_bytes(b"half")
    folder.samples_dir.mkdir()
    (folder.samples_dir / ".partial-step-000004-00.png").touch()
    (folder.path / f".partial-{folder.name}.safetensors").touch()


def test_successful_run_prints_nothing(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor is left what an earlier start that was killed has received from another machine."""
    (folder.received_dir / "0123456789abcdef").mkdir(parents=True)
    request_command(folder, "stop")
    assert supervise(folder, "finish", "wait_for_finish") == 0
    assert capfd.readouterr().err == ""
    assert not (folder.commands_dir / "stop").exists(), "a stop command of an earlier start must not stop this one"
    assert not folder.received_dir.exists()


def test_killed_rank_is_named(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    assert supervise(folder, "lose_peer", "kill:9") == 3
    message = capfd.readouterr().err
    assert message.startswith("Training stopped: rank 1 on ")
    assert "failed while training (killed)" in message
    assert message.count("Training stopped") == 1
    assert last_finished(folder)["exit_code"] == 3
    error = next(event for event in read_events(folder.events_file) if event["type"] == "error")
    assert (error["rank"], error["kind"]) == (1, "killed")


@pytest.mark.timeout(120)  # the other rank would stay for 300 s
def test_stuck_rank_is_killed_after_a_failure(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    assert supervise(folder, "stubborn", "fail:CUDA out of memory. Tried to allocate 2 GiB") == 3
    message = capfd.readouterr().err
    assert "rank 1" in message
    assert "(out of memory)" in message
    assert "Close other programs that use this GPU" in message
    assert f"Full traceback: {folder.log_file(1)}" in message
    assert all(" rank 1 " in line for line in folder.log_file(1).read_text().splitlines())


def test_fatal_startup_errors_are_not_restarted(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    argv = torchrun(folder, "reject:resolution is 7", "stubborn")
    argv.insert(3, "--max-restarts=2")
    assert Supervisor(argv, folder, ranks=range(2), environment={"OMP_NUM_THREADS": "1"}).run() == 2
    message = capfd.readouterr().err
    assert "resolution is 7" in message
    assert "Restart" not in message
    assert (folder.log_dir / "rejected").read_text() == "once\n"


def test_uncaught_error_is_explained_from_the_launcher_log(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert supervise(folder, "stubborn", "uncaught:no module named nonsense", grace_s=0.5) == 3
    message = capfd.readouterr().err
    assert "rank 1" in message
    assert "ImportError: no module named nonsense" in message
    assert str(folder.launcher_log) in message


def test_bad_config_message_names_no_rank(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, str(WORKER), str(folder.path), "reject:resolution is 7"]
    leave_half_written(folder)
    assert Supervisor(argv, folder).run() == 2
    assert [path.name for path in folder.path.rglob("step-*")] == ["step-000003"]
    assert not list(folder.path.rglob(".partial-*")), "the ranks may be killed while they write"
    message = capfd.readouterr().err
    assert message.splitlines()[:2] == [
        "Training did not start: resolution is 7",
        "  What to try: Set it to 512",
    ]
    assert last_finished(folder)["exit_code"] == 2


def test_ranks_of_a_killed_launcher_are_killed(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    assert supervise(folder, "kill_launcher", "stubborn") == 3
    assert "SIGKILL" in capfd.readouterr().err


def test_orphans_and_hanging_ranks_are_killed(folder: RunFolder) -> None:
    argv = torchrun(folder, "orphan", "finish_and_hang:0")
    assert Supervisor(argv, folder, ranks=range(2), grace=GracePeriods(finish_s=0.5)).run() == 0


def test_idle_torchrun_is_killed(folder: RunFolder) -> None:
    code = (
        "import sys, time; from pathlib import Path; from modules.run import EventLog\n"
        "log = EventLog(Path(sys.argv[1])); log.write('phase', phase='training')\n"
        "log.write('finished', reason='finished', exit_code=0); log.close(); time.sleep(300)"
    )
    argv = [sys.executable, "-c", code, str(folder.events_file), str(TORCHRUN)]
    supervisor = Supervisor(argv, folder, grace=GracePeriods(alone_s=0.2, report_s=0.2, finish_s=200.0))
    assert supervisor.run() == 0


def test_one_process_without_torchrun(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    (folder.log_dir / "started-1").touch()
    argv = [sys.executable, str(WORKER), str(folder.path), "kill:11"]
    assert Supervisor(argv, folder).run() == 3
    assert "SIGSEGV" in capfd.readouterr().err
    mapped = (
        "import mmap, sys; f = open(sys.argv[1], 'w+b'); f.truncate(9); "
        "m = mmap.mmap(f.fileno(), 9); f.truncate(0); m[0]"
    )
    assert Supervisor([sys.executable, "-c", mapped, str(folder.path / "model")], folder).run() == 3
    assert "lost a file that it had mapped into memory (signal SIGBUS)" in capfd.readouterr().err
    assert Supervisor([sys.executable, "-c", "raise SystemExit(4)"], folder).run() == 4


@pytest.mark.parametrize(
    ("number", "exit_code", "reason"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGQUIT, 143, "terminated"),
        (signal.SIGUSR2, 143, "terminated"),
    ],
)
def test_one_signal_stops_after_a_backup(
    folder: RunFolder, number: signal.Signals, exit_code: int, reason: str
) -> None:
    # torchrun is used in one of the cases; starting it takes seconds.
    alone = [sys.executable, str(WORKER), str(folder.path), "train_until_stopped"]
    argv = torchrun(folder, "train_until_stopped", "wait_for_finish") if number == signal.SIGINT else alone
    process = supervise_in_subprocess(folder, *argv, late_signal=signal.SIGTERM)
    wait_until_started(folder, 2 if number == signal.SIGINT else 1)
    # Like `timeout`: the same request twice, at once.
    process.send_signal(number)
    process.send_signal(number)
    _, message = process.communicate(timeout=30)
    assert process.returncode == exit_code
    assert "Stopping after a backup" in message
    assert "Training stopped" not in message
    assert last_finished(folder)["reason"] == reason


def test_a_signal_does_not_replace_a_persons_stop(folder: RunFolder) -> None:
    """The window sends both when it is closed; the run ends as stopped, not as terminated by somebody."""
    request_command(folder, "stop")
    requests = StopRequests(folder, ProcessTree(), [], has_first_rank=True)
    with requests.handlers_installed(), subprocess.Popen([sys.executable, "-c", ""]) as child:
        signal.raise_signal(signal.SIGTERM)
        requests.handle(child)
    assert requests.stop_reason == "terminated"
    assert is_stopped_by_user(folder)


def test_what_only_measures_is_not_waited_for_after_a_stop(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its largest batch may take minutes, and there is nothing to keep."""
    assert GracePeriods.of_start({"TANDEM_FIND_BATCH_SIZE": "{}"}).stop_s == 5.0
    assert GracePeriods.of_start({}).stop_s == math.inf
    tree = ProcessTree()
    requests = StopRequests(folder, tree, [], has_first_rank=True, within_s=0.3)
    argv, environment = [sys.executable, "-c", "import time; time.sleep(100)"], {**os.environ, **tree.variables}
    with requests.handlers_installed(), subprocess.Popen(argv, env=environment) as child:
        signal.raise_signal(signal.SIGINT)
        while child.poll() is None:
            requests.handle(child)
            time.sleep(0.05)
    assert (requests.was_forced, requests.stop_reason) == (True, "interrupted")
    assert "Stopping; press Ctrl-C again" in capfd.readouterr().err


def test_a_late_signal_does_not_end_a_run_that_a_rank_was_asked_to_pause(folder: RunFolder) -> None:
    process = supervise_in_subprocess(
        folder, sys.executable, str(WORKER), str(folder.path), "finish:138", late_signal=signal.SIGTERM
    )
    _, message = process.communicate(timeout=30)
    assert process.returncode == 138, message


def test_second_ctrl_c_stops_at_once(folder: RunFolder) -> None:
    process = supervise_in_subprocess(folder, sys.executable, str(WORKER), str(folder.path), "stubborn")
    wait_until_started(folder, 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "without a backup; there is none yet" in message
    assert last_finished(folder)["exit_code"] == 130


def test_node_without_rank_0_signals_its_ranks(folder: RunFolder) -> None:
    argv = (sys.executable, str(WORKER), str(folder.path), "wait_for_signal")
    leave_half_written(folder)
    process = supervise_in_subprocess(folder, *argv, ranks=range(2, 3))
    wait_until_started(folder, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    assert not folder.events_file.exists(), "only node 0 writes events"
    assert len(list(folder.path.rglob(".partial-*"))) == 5, "rank 0 may still be writing into a shared folder"


def test_training_survives_a_killed_supervisor(folder: RunFolder) -> None:
    process = supervise_in_subprocess(folder, sys.executable, str(WORKER), str(folder.path), "train_until_stopped")
    wait_until_started(folder, 1)
    process.kill()
    process.communicate(timeout=10)
    training = psutil.Process(int((folder.log_dir / "started-0").read_text()))
    assert training.is_running()
    request_command(folder, "stop", "interrupted")
    training.wait(timeout=10)
    assert last_finished(folder)["exit_code"] == 130


@pytest.mark.parametrize(("child", "may_restart", "exit_code"), [(1, True, 130), (1, False, 3), (2, True, 2)])
def test_a_signal_after_the_failure_prevents_a_restart(
    folder: RunFolder, capfd: pytest.CaptureFixture[str], child: int, may_restart: bool, exit_code: int
) -> None:
    argv = [sys.executable, "-c", f"raise SystemExit({child})"]
    supervisor = Supervisor(
        argv,
        folder,
        collect_remote_failures=lambda: signal.raise_signal(signal.SIGINT),
        may_restart=any_failure if may_restart else None,
    )
    before = signal.getsignal(signal.SIGINT)
    try:
        assert supervisor.run() == exit_code
        assert signal.getsignal(signal.SIGINT) is before, "a program started later would inherit it"
    finally:
        signal.signal(signal.SIGINT, before)
    assert not supervisor.can_restart
    assert last_finished(folder) | {
        "exit_code": exit_code,
        "reason": "interrupted" if exit_code == 130 else "failed",
    } == (last_finished(folder))
    assert ("Stopped as requested" in capfd.readouterr().err) == (exit_code == 130)


def test_handlers_are_as_before_after_a_requested_stop(folder: RunFolder) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = threading.Thread(target=lambda: (wait_until_started(folder, 1), os.kill(os.getpid(), signal.SIGTERM)))
    stop.start()
    try:
        assert Supervisor([sys.executable, str(WORKER), str(folder.path), "train_until_stopped"], folder).run() == 143
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)
        stop.join()


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


def test_a_folder_that_is_gone_at_the_end_is_named(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, shutil, sys, time; from pathlib import Path; from modules.run import EventLog\n"
        "folder = Path(sys.argv[1]); log = EventLog(folder / 'events.jsonl'); log.write('started'); log.close()\n"
        "time.sleep(0.5); shutil.rmtree(folder)"
    )
    argv = [sys.executable, "-c", code, str(folder.path)]
    assert Supervisor(argv, folder, environment={"PYTHONPATH": str(WORKER.parents[3])}).run() == 3
    message = capfd.readouterr().err
    assert f"the run folder {folder.path} was gone: deleted, or its disk was unmounted" in message
    assert "in the middle of the run" not in message


def test_unwritable_folder_error(folder: RunFolder) -> None:
    folder.launcher_log.mkdir()
    with pytest.raises(ConfigError, match=r"run folder cannot be written: .*launcher\.txt"):
        Supervisor([sys.executable, "-c", ""], folder).run()


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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc counts the bytes that a process has read")
def test_the_supervisor_keeps_no_events_and_reads_each_once(folder: RunFolder) -> None:
    """In a process of its own: tracemalloc and /proc count what all threads of a process do."""
    folder.events_file.write_text('{"type":"step","step":1}\n')
    code = f"from tests.run.supervise.test_supervisor import replay; replay({str(folder.path)!r})"
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
        supervisor._read_progress(0.0)
    assert _bytes_read() - read < 4096, "an unchanged file is not read again"
    assert read - before < size * 1.3 + (1 << 20)


def _bytes_read() -> int:
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])
