"""Signals to a supervisor: one stops after a backup, a second one at once, a late one prevents a restart."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from modules.run import RunFolder, request_command
from modules.run.folder.commands import is_stopped_by_user
from modules.run.supervise.process_tree import ProcessTree
from modules.run.supervise.stop_requests import StopRequests
from modules.run.supervise.supervisor import GracePeriods, Supervisor, any_failure
from tests.run.supervise.supervised import (
    WORKER,
    last_finished,
    leave_half_written,
    supervise_in_subprocess,
    torchrun,
    wait_until_started,
)

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "exit_code", "reason"),
    [
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow),
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
    _, message = process.communicate(timeout=100)
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
    folder: RunFolder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    assert "Stopping.\n" in capfd.readouterr().err  # nobody can press a key, such as under the window
    terminal, own = os.openpty()
    with os.fdopen(terminal), os.fdopen(own) as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        requests = StopRequests(folder, tree, [], has_first_rank=True, within_s=0.3)
        with requests.handlers_installed(), subprocess.Popen([sys.executable, "-c", ""]) as child:
            signal.raise_signal(signal.SIGINT)
            requests.handle(child)
    assert "Stopping; press Ctrl-C again to stop at once." in capfd.readouterr().err


@pytest.mark.slow
def test_a_late_signal_does_not_end_a_run_that_a_rank_was_asked_to_pause(folder: RunFolder) -> None:
    process = supervise_in_subprocess(
        folder, sys.executable, str(WORKER), str(folder.path), "finish:138", late_signal=signal.SIGTERM
    )
    _, message = process.communicate(timeout=100)
    assert process.returncode == 138, message


@pytest.mark.slow
def test_second_ctrl_c_stops_at_once(folder: RunFolder) -> None:
    process = supervise_in_subprocess(folder, sys.executable, str(WORKER), str(folder.path), "stubborn")
    wait_until_started(folder, 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "without a backup; there is none yet" in message
    assert last_finished(folder)["exit_code"] == 130


def test_node_without_rank_0_signals_its_ranks(folder: RunFolder) -> None:
    argv = (sys.executable, str(WORKER), str(folder.path), "wait_for_signal")
    leave_half_written(folder)
    process = supervise_in_subprocess(folder, *argv, ranks=range(2, 3))
    wait_until_started(folder, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 130
    assert not folder.events_file.exists(), "only node 0 writes events"
    assert len(list(folder.path.rglob(".partial-*"))) == 5, "rank 0 may still be writing into a shared folder"


@pytest.mark.slow
def test_training_survives_a_killed_supervisor(folder: RunFolder) -> None:
    process = supervise_in_subprocess(folder, sys.executable, str(WORKER), str(folder.path), "train_until_stopped")
    wait_until_started(folder, 1)
    process.kill()
    process.communicate(timeout=100)
    training = psutil.Process(int((folder.log_dir / "started-0").read_text()))
    assert training.is_running()
    request_command(folder, "stop", "interrupted")
    training.wait(timeout=100)
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
