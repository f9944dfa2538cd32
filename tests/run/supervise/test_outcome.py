"""Exit code and message of a run, from the evidence it left behind."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from modules.machine import hostname
from modules.run import Event, Failure, RunFolder
from modules.run.folder.error_rules import advice_for_kind
from modules.run.folder.event_summary import EventSummary
from modules.run.folder.failures import record_failure
from modules.run.supervise.launcher_log import LauncherReport, WorkerExit, parse_launcher_log
from modules.run.supervise.outcome import RunEvidence, decide_outcome, outcome_message

OOM = Failure(1, "b", "out_of_memory", "CUDA out of memory", "Lower batch_size", "Traceback", time=100.0)
LOST = Failure(0, "a", "peer_lost", "Connection closed by peer", time=101.0)
ODD = Failure(0, "a", "error", "RuntimeError: an unknown message", time=101.0)
KILLED = WorkerExit(1, -9, 11, "b", time=100.0, is_first=True)
REGROUPED: list[Event] = [{"type": "started"}, {"type": "phase", "phase": "regrouping"}]
ENDED = WorkerExit(0, -15, 10, "a", time=100.0)


def finished(code: int) -> EventSummary:
    events: list[Event] = [{"type": "phase", "phase": "training"}]
    return EventSummary([*events, {"type": "finished", "reason": "x", "exit_code": code}])


@pytest.mark.parametrize(
    ("evidence", "code", "rank"),
    [
        (RunEvidence(0), 0, None),
        (RunEvidence(0, events=finished(0)), 0, None),
        (RunEvidence(1, events=finished(0)), 0, None),
        (RunEvidence(1, events=finished(130)), 130, None),
        (RunEvidence(0, stop_reason="terminated"), 143, None),
        (RunEvidence(0, stop_reason="paused"), 138, None),
        (RunEvidence(1, events=finished(3), failures=[OOM, LOST]), 3, 1),
        (RunEvidence(1, failures=[LOST, OOM]), 3, 1),
        (RunEvidence(1, failures=[LOST], report=LauncherReport((KILLED, ENDED))), 3, 1),
        (RunEvidence(1, failures=[ODD], report=LauncherReport((KILLED,))), 3, 1),
        (RunEvidence(1, failures=[LOST], report=LauncherReport((KILLED,)), killed_pids=frozenset({11})), 3, 0),
        (RunEvidence(1, failures=[LOST], report=LauncherReport((WorkerExit(1, 7, 11),))), 3, 1),
        (RunEvidence(1, report=LauncherReport((WorkerExit(1, 143, 11),))), 143, None),
        (RunEvidence(1, report=LauncherReport(signal=2), ranks=range(1, 2)), 130, None),
        (RunEvidence(1, report=LauncherReport(signal=1), ranks=range(1, 2)), 143, None),
        (RunEvidence(1, report=LauncherReport(signal=2), ranks=range(1, 2), failures=[OOM]), 3, 1),
        (RunEvidence(1, report=LauncherReport(signal=2)), 3, 0),
        (RunEvidence(1, report=LauncherReport((WorkerExit(1, 4, 11),))), 4, 1),
        (RunEvidence(1, report=LauncherReport((ENDED,))), 3, 0),
        (RunEvidence(1, failures=[Failure(2, "c", "data", "no pictures")]), 4, 2),
        (RunEvidence(2), 2, 0),
        (RunEvidence(1, events=EventSummary([{"type": "error", "rank": 5, "kind": "config", "message": "m"}])), 2, 5),
        (RunEvidence(-9, stop_reason="interrupted", was_forced=True), 130, None),
        (RunEvidence(-9, was_forced=True), 3, None),
        (RunEvidence(1, events=EventSummary([{"type": "finished", "exit_code": "0"}]), failures=[OOM]), 3, 1),
        (RunEvidence(3221225477), 3, 0),
        (RunEvidence(0, events=EventSummary([{"type": "started"}])), 3, 0),
        (RunEvidence(0, events=EventSummary([{"type": "phase", "phase": "loading"}])), 3, 0),
        (RunEvidence(0, events=EventSummary([{"type": "phase", "phase": "loading"}]), ranks=range(1, 2)), 0, None),
        (RunEvidence(0, events=EventSummary([{"type": "started"}]), stop_reason="interrupted"), 130, None),
        (RunEvidence(0, events=EventSummary(REGROUPED)), 0, None),
        (RunEvidence(1, events=EventSummary(REGROUPED), report=LauncherReport((KILLED,))), 0, None),
        (RunEvidence(0, events=EventSummary(REGROUPED), stop_reason="interrupted"), 130, None),
        (RunEvidence(-9, failures=[LOST], launcher="torchrun", launcher_pid=5, ranks=range(2, 4)), 3, 2),
        (RunEvidence(-9, failures=[LOST], launcher="torchrun", launcher_pid=5, killed_pids=frozenset({5})), 3, 0),
    ],
)
def test_outcome_decisions(evidence: RunEvidence, code: int, rank: int | None) -> None:
    outcome = decide_outcome(evidence)
    assert outcome.exit_code == code
    assert (outcome.failure.rank if outcome.failure else None) == rank


@pytest.mark.parametrize(
    ("kind", "host", "advice"),
    [
        ("launcher", "a", "If nobody did this on purpose, memory may have run out: check `dmesg`."),
        ("lost", "b", "Check that the machine is running and reachable over the network."),
        ("gone", hostname(), "See the end of {log} and of its own log. If it was killed, `dmesg` shows whether"),
        ("gone", "b", "See the end of its launcher's log on b and of its own log. If it was killed, `dmesg` shows"),
    ],
)
def test_a_joined_machine_says_what_can_be_done_there(kind: str, host: str, advice: str, tmp_path: Path) -> None:
    """It cannot resume the run, and its logs have other names than machine 0's."""
    folder = RunFolder(tmp_path, machine=1)
    folder.log_dir.mkdir()
    folder.launcher_log.write_text("")
    evidence = RunEvidence(1, failures=[Failure(1, host, kind, "It broke.", advice_for_kind(kind))], ranks=range(1, 2))
    _, _, tried, *rest = outcome_message(decide_outcome(evidence), folder).splitlines()
    assert tried.startswith(f"  What to try: {advice.format(log=folder.launcher_log)}")
    assert "--resume" not in tried
    assert rest == [
        "  To continue: resume the run on machine 0 (--resume latest), then run its new line here.",
        f"  More in: {folder.launcher_log}",
        "  The log of the whole run is on machine 0.",
    ]


def test_a_rejection_of_one_machine_names_it(tmp_path: Path) -> None:
    """Only there is the folder missing; what all ranks are rejected for needs no name."""
    folder = RunFolder(tmp_path)
    missing = Failure(1, "b", "data", "the folder 'cats' does not exist.", "Correct the path.", time=1.0)
    evidence = RunEvidence(4, events=EventSummary([{"type": "phase", "phase": "indexing"}]), failures=[missing])
    record_failure(folder, missing)
    message = outcome_message(decide_outcome(evidence), folder)
    assert message.startswith("Training did not start: rank 1 on b: the folder 'cats' does not exist.")
    record_failure(folder, replace(missing, rank=2, host="c"))
    message = outcome_message(decide_outcome(evidence), folder)
    assert message.startswith("Training did not start: the folder 'cats' does not exist.")


@pytest.mark.parametrize("phase", ["training", "validation", "sampling", "saving", "test"])
def test_data_that_vanishes_stops_a_training_that_had_started(tmp_path: Path, phase: str) -> None:
    lost = Failure(0, "a", "data", "the cache is gone.", "Resume.", time=1.0)
    evidence = RunEvidence(4, events=EventSummary([{"type": "phase", "phase": phase}]), failures=[lost])
    assert outcome_message(decide_outcome(evidence), RunFolder(tmp_path)).startswith("Training stopped: rank 0 on a")


def test_message_names_rank_host_cause_fix_and_log() -> None:
    folder = RunFolder(Path("runs/x"))
    evidence = RunEvidence(1, events=EventSummary([{"type": "step"}]), failures=[OOM])
    message = outcome_message(decide_outcome(evidence), folder)
    assert message.splitlines() == [
        "Training stopped: rank 1 on b failed while training (out of memory).",
        "  What happened: CUDA out of memory",
        "  What to try: Lower batch_size",
        f"  Full traceback: {folder.log_file(1)}",
    ]
    assert outcome_message(decide_outcome(RunEvidence(0)), folder) == ""
    for kind in ("error", "training"):  # these words say nothing
        plain = RunEvidence(1, failures=[Failure(0, "a", kind, "It broke.")], events=evidence.events)
        line = outcome_message(decide_outcome(plain), folder).splitlines()[0]
        assert line == "Training stopped: rank 0 on a failed while training."


def test_message_says_how_to_go_on_if_there_is_a_backup(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "x")
    outcome = decide_outcome(RunEvidence(1, events=EventSummary([{"type": "step"}]), failures=[OOM]))
    assert "--resume" not in outcome_message(outcome, folder)
    (folder.backup_dir / "step-000020").mkdir(parents=True)
    assert "  To continue from the newest backup: --resume latest --run_name x" in outcome_message(outcome, folder)


def test_joined_machine_reports_failures_as_failures() -> None:
    folder = RunFolder(Path("runs/x"))
    failure = Failure(2, "b", "data", "A picture is gone", "", "Traceback")
    joined = RunEvidence(1, failures=[failure], launcher="torchrun", ranks=range(2, 4))
    assert outcome_message(decide_outcome(joined), folder).startswith("Training stopped: rank 2 on b failed (data).")
    first = RunEvidence(1, failures=[failure], launcher="torchrun", ranks=range(2))
    assert outcome_message(decide_outcome(first), folder).startswith("Training did not start: rank 2 on b: A picture")


def test_traceback_hint_needs_a_recorded_traceback() -> None:
    folder = RunFolder(Path("runs/x"))
    message = outcome_message(decide_outcome(RunEvidence(1, failures=[LOST], report=LauncherReport((KILLED,)))), folder)
    assert message.endswith(f"  More in: {folder.launcher_log}")


def test_launcher_report_outranks_other_ranks() -> None:
    gone = Failure(1, "b", "gone", "The process of rank 1 has ended", time=101.0)
    failure = decide_outcome(RunEvidence(1, failures=[gone, LOST], report=LauncherReport((KILLED,)))).failure
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "killed")
    failure = decide_outcome(RunEvidence(1, failures=[gone, LOST])).failure
    assert failure == gone


@pytest.mark.parametrize("first", [LOST, Failure(1, "b", "launcher", "torchrun has exited during the run", time=101.0)])
def test_killed_launcher_is_reported(first: Failure) -> None:
    evidence = RunEvidence(-9, failures=[first], launcher="torchrun", launcher_pid=5)
    message = outcome_message(decide_outcome(evidence), RunFolder(Path("runs/x")))
    assert message.startswith("Training stopped: the launcher on ")
    assert "torchrun, process 5" in message
    assert "SIGKILL" in message


def test_gloo_mismatch_is_explained() -> None:
    text = "  what():  [enforce fail at pair.cc:456] 8 vs 4. Is there a distributed collective mismatch in your code?\n"
    report = parse_launcher_log(text + "failed (exitcode: -6) local_rank: 1 (pid: 7)")
    failure = decide_outcome(RunEvidence(1, failures=[LOST], report=report)).failure
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "mismatch")
    assert "do not match each other" in failure.message
    assert "8 vs 4" in failure.message


def test_port_in_use_is_read_from_the_launcher_log() -> None:
    text = "Traceback\ntorch.distributed.DistNetworkError: failed to listen, name: EADDRINUSE, message: in use\n"
    failure = decide_outcome(RunEvidence(1, report=parse_launcher_log(text))).failure
    assert failure is not None
    assert failure.kind == "port_in_use"
    assert "initial_port" in failure.advice


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_a_signal_from_outside_is_no_crash() -> None:
    outcome = decide_outcome(RunEvidence(1, report=LauncherReport((WorkerExit(1, -signal.SIGHUP, 10, "a"),))))
    assert outcome.failure is not None
    assert outcome.failure.kind == "killed"
    assert "terminated externally (signal SIGHUP)" in outcome.failure.message
    assert "driver" not in outcome.failure.advice


def test_a_machine_does_not_accuse_itself_of_being_unreachable() -> None:
    """Packets were lost in one direction only, so beta's report about alpha arrived there."""
    about_alpha = Failure(0, "alpha", "lost", "Host alpha cannot be reached.", time=100.0)
    about_beta = Failure(1, "beta", "lost", "Host beta cannot be reached.", time=101.0)
    for first_rank, failures, host in (
        (0, (about_alpha, about_beta), "beta"),
        (1, (about_alpha, about_beta), "alpha"),
        (0, (about_alpha,), "alpha"),
    ):
        ranks = range(first_rank, first_rank + 1)
        failure = decide_outcome(RunEvidence(1, failures=failures, ranks=ranks)).failure
        assert failure is not None
        assert failure.host == host
