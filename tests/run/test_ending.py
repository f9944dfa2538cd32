"""Which exit code and which message follow from what a run left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.run import Event, Failure, RunFolder
from modules.run.ending import Traces, decide_ending, ending_message
from modules.run.launcher_log import LauncherReport, WorkerExit, parse_launcher_log, shows_failure

OOM = Failure(1, "b", "out_of_memory", "CUDA out of memory", "Lower batch_size", "Traceback", time=100.0)
LOST = Failure(0, "a", "peer_lost", "Connection closed by peer", time=101.0)
ODD = Failure(0, "a", "error", "RuntimeError: words we do not know", time=101.0)
KILLED = WorkerExit(1, -9, 11, "b", time=100.0, is_first=True)
ENDED = WorkerExit(0, -15, 10, "a", time=100.0)


def finished(code: int) -> list[Event]:
    return [{"type": "phase", "phase": "training"}, {"type": "finished", "reason": "x", "exit_code": code}]


@pytest.mark.parametrize(
    ("traces", "code", "rank"),
    [
        (Traces(0), 0, None),
        (Traces(0, events=finished(0)), 0, None),
        (Traces(1, events=finished(0)), 0, None),
        (Traces(1, events=finished(130)), 130, None),
        (Traces(0, asked="terminated"), 143, None),
        (Traces(1, events=finished(3), failures=[OOM, LOST]), 3, 1),
        (Traces(1, failures=[LOST, OOM]), 3, 1),
        (Traces(1, failures=[LOST], report=LauncherReport((KILLED, ENDED))), 3, 1),
        (Traces(1, failures=[ODD], report=LauncherReport((KILLED,))), 3, 1),
        (Traces(1, failures=[LOST], report=LauncherReport((KILLED,)), victims=frozenset({11})), 3, 0),
        (Traces(1, failures=[LOST], report=LauncherReport((WorkerExit(1, 7, 11),))), 3, 1),
        (Traces(1, report=LauncherReport((WorkerExit(1, 143, 11),))), 143, None),
        (Traces(1, report=LauncherReport((WorkerExit(1, 4, 11),))), 4, 1),
        (Traces(1, report=LauncherReport((ENDED,))), 3, 0),
        (Traces(1, failures=[Failure(2, "c", "data", "no pictures")]), 4, 2),
        (Traces(2), 2, 0),
        (Traces(1, events=[{"type": "error", "rank": 5, "kind": "config", "message": "m"}]), 2, 5),
        (Traces(-9, asked="interrupted", was_cut_short=True), 130, None),
        (Traces(1, events=[{"type": "finished", "exit_code": "0"}], failures=[OOM]), 3, 1),
        (Traces(3221225477), 3, 0),
        (Traces(0, events=[{"type": "started"}]), 3, 0),
        (Traces(0, events=[{"type": "started"}], asked="interrupted"), 130, None),
        (Traces(-9, failures=[LOST], launcher="torchrun", launcher_id=5, ranks=range(2, 4)), 3, 2),
        (Traces(-9, failures=[LOST], launcher="torchrun", launcher_id=5, victims=frozenset({5})), 3, 0),
    ],
)
def test_decisions(traces: Traces, code: int, rank: int | None) -> None:
    ending = decide_ending(traces)
    assert ending.exit_code == code
    assert (ending.failure.rank if ending.failure else None) == rank


def test_message_names_rank_host_cause_fix_and_log() -> None:
    folder = RunFolder(Path("runs/x"))
    message = ending_message(decide_ending(Traces(1, events=[{"type": "step"}], failures=[OOM])), folder)
    assert message.splitlines() == [
        "Training stopped: rank 1 on b failed while training (out of memory).",
        "  What happened: CUDA out of memory",
        "  What to try: Lower batch_size",
        f"  Full traceback: {folder.log_file(1)}",
    ]
    assert ending_message(decide_ending(Traces(0)), folder) == ""


def test_a_machine_that_joined_does_not_call_a_failure_a_refusal() -> None:
    folder = RunFolder(Path("runs/x"))
    failure = Failure(2, "b", "data", "A picture is gone", "", "Traceback")
    joined = Traces(1, failures=[failure], launcher="torchrun", ranks=range(2, 4))
    assert ending_message(decide_ending(joined), folder).startswith("Training stopped: rank 2 on b failed (data).")
    first = Traces(1, failures=[failure], launcher="torchrun", ranks=range(2))
    assert ending_message(decide_ending(first), folder).startswith("Training did not start: A picture is gone")


def test_only_a_recorded_traceback_is_called_one() -> None:
    folder = RunFolder(Path("runs/x"))
    message = ending_message(decide_ending(Traces(1, failures=[LOST], report=LauncherReport((KILLED,)))), folder)
    assert message.endswith(f"  More in: {folder.launcher_log}")


def test_the_launchers_word_counts_more_than_that_of_the_others() -> None:
    gone = Failure(1, "b", "gone", "The process of rank 1 has ended", time=101.0)
    failure = decide_ending(Traces(1, failures=[gone, LOST], report=LauncherReport((KILLED,)))).failure
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "killed")
    failure = decide_ending(Traces(1, failures=[gone, LOST])).failure
    assert failure == gone


def test_an_ended_launcher_is_told_as_such() -> None:
    traces = Traces(-9, failures=[LOST], launcher="torchrun", launcher_id=5)
    message = ending_message(decide_ending(traces), RunFolder(Path("runs/x")))
    assert message.startswith("Training stopped: the launcher on ")
    assert "torchrun, process 5" in message
    assert "SIGKILL" in message


def test_what_gloo_says_of_a_mismatch_is_put_into_words() -> None:
    text = "  what():  [enforce fail at pair.cc:456] 8 vs 4. Is there a distributed collective mismatch in your code?\n"
    report = parse_launcher_log(text + "failed (exitcode: -6) local_rank: 1 (pid: 7)")
    failure = decide_ending(Traces(1, failures=[LOST], report=report)).failure
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "mismatch")
    assert "do not match each other" in failure.message
    assert "8 vs 4" in failure.message


def test_taken_port_is_read_from_the_launchers_own_traceback() -> None:
    text = "Traceback\ntorch.distributed.DistNetworkError: failed to listen, name: EADDRINUSE, message: in use\n"
    failure = decide_ending(Traces(1, report=parse_launcher_log(text))).failure
    assert failure is not None
    assert failure.kind == "process_group"
    assert "initial_port" in failure.advice


TORCHRUN = """\
[rank5]: ValueError: five
tqdm 3%|## | 1/2 KeyError: not a line of its own
E1121 02:34:02.451000 4504 api.py:1002] failed (exitcode: 7) local_rank: 1 (pid: 4507) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  time      : 2026-11-21_02:34:02
  host      : node-a
  rank      : 4 (local_rank: 0)
  exitcode  : -15 (pid: 4506)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4506
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_02:34:02
  host      : node-a
  rank      : 5 (local_rank: 1)
  exitcode  : 7 (pid: 4507)
  error_file: <N/A>
"""


def test_torchruns_report_is_read() -> None:
    report = parse_launcher_log(TORCHRUN, first_rank=4)
    assert [(each.rank, each.exit_code, each.is_first) for each in report.exits] == [
        (5, 7, True),
        (4, -15, False),
    ]
    assert report.exits[0].time > 0
    assert report.error_line(5) == "ValueError: five"
    assert report.error_line(4) == ""
    without_report = parse_launcher_log(TORCHRUN[: TORCHRUN.index("Failures")], first_rank=4)
    assert [(each.rank, each.exit_code) for each in without_report.exits] == [(5, 7)]
    assert parse_launcher_log("") == LauncherReport()


def test_signs_of_a_failure() -> None:
    assert shows_failure(TORCHRUN)
    assert shows_failure("W1121 api.py:1028] Sending process 4506 closing signal SIGTERM")
    stopped = "Received Signals.SIGTERM death signal, shutting down workers\n"
    stopped += "Sending process 4506 closing signal SIGTERM"
    assert not shows_failure(stopped)
