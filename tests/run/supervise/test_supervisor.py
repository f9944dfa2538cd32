"""Real processes under real torchrun: one message, the right exit code, and no process left, whatever a rank does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from modules.config import ConfigError
from modules.run import RunFolder, read_events, request_command
from modules.run.exit_codes import INTERRUPTED
from modules.run.folder.failures import Failure, create_reserve, record_failure
from modules.run.supervise.supervisor import GracePeriods, Supervisor
from tests.run.supervise.supervised import (
    WORKER,
    last_finished,
    leave_half_written,
    supervise,
    torchrun,
)

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.slow
def test_successful_run_prints_nothing(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor is left what an earlier start that was killed has received from another machine."""
    (folder.received_dir / "0123456789abcdef").mkdir(parents=True)
    request_command(folder, "stop")
    assert supervise(folder, "finish", "wait_for_finish") == 0
    assert capfd.readouterr().err == ""
    assert not (folder.commands_dir / "stop").exists(), "a stop command of an earlier start must not stop this one"
    assert not folder.received_dir.exists()


@pytest.mark.slow
def test_killed_rank_is_named(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    assert supervise(folder, "lose_peer", "kill:9") == 3
    message = capfd.readouterr().err
    assert message.startswith("Training stopped: rank 1 on ")
    assert "failed while training (killed)" in message
    assert message.count("Training stopped") == 1
    assert last_finished(folder)["exit_code"] == 3
    error = next(event for event in read_events(folder.events_file) if event["type"] == "error")
    assert (error["rank"], error["kind"]) == (1, "killed")


@pytest.mark.slow
def test_what_another_rank_failed_of_before_is_not_the_cause(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    before = Failure(rank=1, host="beta", kind="connection lost", message="beta was unplugged", time=time.time() - 60)
    record_failure(folder, before)  # of a rank of another machine, by one of this
    (folder.log_dir / "started-1").touch()  # the rank that fails waits for its peer
    argv = torchrun(folder, "fail:the disk is gone")
    Supervisor(argv, folder, ranks=range(1), environment={"OMP_NUM_THREADS": "1"}).run()
    message = capfd.readouterr().err
    assert "the disk is gone" in message
    assert "unplugged" not in message


@pytest.mark.slow
@pytest.mark.timeout(120)  # the other rank would stay for 300 s
def test_stuck_rank_is_killed_after_a_failure(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    assert supervise(folder, "stubborn", "fail:CUDA out of memory. Tried to allocate 2 GiB") == 3
    message = capfd.readouterr().err
    assert "rank 1" in message
    assert "(out of memory)" in message
    assert "Close other programs that use this GPU" in message
    assert f"Full traceback: {folder.log_file(1)}" in message
    assert all(" rank 1 " in line for line in folder.log_file(1).read_text().splitlines())


@pytest.mark.slow
def test_fatal_startup_errors_are_not_restarted(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    argv = torchrun(folder, "reject:resolution is 7", "stubborn")
    argv.insert(3, "--max-restarts=2")
    assert Supervisor(argv, folder, ranks=range(2), environment={"OMP_NUM_THREADS": "1"}).run() == 2
    message = capfd.readouterr().err
    assert "resolution is 7" in message
    assert "Restart" not in message
    assert (folder.log_dir / "rejected").read_text() == "once\n"


@pytest.mark.slow
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


@pytest.mark.slow
def test_ranks_of_a_killed_launcher_are_killed(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    assert supervise(folder, "kill_launcher", "stubborn") == 3
    assert "SIGKILL" in capfd.readouterr().err


@pytest.mark.slow
def test_orphans_and_hanging_ranks_are_killed(folder: RunFolder) -> None:
    argv = torchrun(folder, "orphan", "finish_and_hang:0")
    assert Supervisor(argv, folder, ranks=range(2), grace=GracePeriods(finish_s=0.5)).run() == 0


def test_a_launcher_for_which_no_rank_can_start_is_ended(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever a process of the start before that was killed has left; on this machine is rank 1."""
    create_reserve(folder, 1)
    argv = [sys.executable, "-c", "import time; time.sleep(300)", str(folder.path)]
    lost = Failure(0, "alpha", "machine_lost", "alpha has ended.")
    assert Supervisor(argv, folder, ranks=range(1, 2), cannot_start=lambda: lost).run() == 3
    assert "rank 0 on alpha failed (machine lost).\n  What happened: alpha has ended." in capfd.readouterr().err


def test_a_stop_is_no_failure_if_then_no_rank_can_start(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C on a joined machine whose launcher still waits, and hears nothing; machine 0 ends as well."""
    wait = "import sys, time; from signal import *; signal(SIGINT, SIG_IGN); open(sys.argv[1], 'w'); time.sleep(9)"
    waits = folder.path / "waits"
    lost = Failure(0, "alpha", "machine_lost", "alpha has ended.")
    supervisor = Supervisor(
        [sys.executable, "-c", wait, str(waits)],
        folder,
        ranks=range(1, 2),
        cannot_start=lambda: lost if supervisor.is_stopped else None,
    )

    def interrupt() -> None:
        while not waits.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert supervisor.run() == INTERRUPTED
    assert "failed" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_launcher_whose_ranks_have_started_and_ended_is_left_alone(folder: RunFolder) -> None:
    """Machine 0 may have ended its part of a complete run while the launcher here is still about to exit."""
    script = """if True:
        import sys, time
        from pathlib import Path
        from modules.run.folder.failures import create_reserve, release_reserve
        from modules.run.folder.run_folder import RunFolder
        folder = RunFolder(Path(sys.argv[1]))
        create_reserve(folder, 1)
        while not (folder.path / "machine 0 has ended").exists():
            time.sleep(0.05)
        release_reserve(folder, [1])
        time.sleep(1)
    """
    ended = folder.path / "machine 0 has ended"
    lost = Failure(0, "alpha", "machine_lost", "alpha has ended.")
    argv = [sys.executable, "-c", script, str(folder.path)]
    supervisor = Supervisor(
        argv,
        folder,
        ranks=range(1, 2),
        environment={"PYTHONPATH": str(WORKER.parents[3])},
        cannot_start=lambda: lost if ended.exists() else None,
    )

    def end_machine_0() -> None:
        while not supervisor._has_started:
            time.sleep(0.05)
        ended.touch()

    threading.Thread(target=end_machine_0, daemon=True).start()
    assert supervisor.run() == 0


@pytest.mark.slow
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
