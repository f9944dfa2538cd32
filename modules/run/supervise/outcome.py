"""How a run ended: its exit code and the root failure, determined from the evidence it left behind."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from modules.machine import hostname, system_hostname
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED, PAUSED, TERMINATED, exit_code_of
from modules.run.folder.commands import STOP_INTERRUPTED, STOP_PAUSED, STOP_TERMINATED
from modules.run.folder.error_help import explain_text
from modules.run.folder.error_rules import advice_for_kind
from modules.run.folder.event_summary import REGROUPING, EventSummary
from modules.run.folder.failures import Failure, read_failures
from modules.run.folder.run_folder import RunFolder
from modules.run.supervise.launcher_log import LauncherReport, WorkerExit

CODE_OF_STOP: Final = {STOP_INTERRUPTED: INTERRUPTED, STOP_TERMINATED: TERMINATED, STOP_PAUSED: PAUSED}
REASON_OF_CODE: Final = {code: reason for reason, code in CODE_OF_STOP.items()}
_VAGUE_KINDS: Final = frozenset({"error", "training"})  # what happened is in the message alone
_KINDS_BEFORE_START: Final = frozenset({"config", "resume", "data"})
_CODE_KINDS: Final = {exit_code_of(kind): kind for kind in ("config", "data", "interrupted", "terminated")}
# A process with one of these exit codes is the root cause. SIGABRT is missing on purpose: NCCL's watchdog aborts a
# healthy rank with it after another has died.
_ROOT_CAUSE_SIGNALS: Final = frozenset({-9, -11, -7})
_SIGTERM: Final = -15
# Nothing that a process does to itself ends with these.
_EXTERNAL_SIGNALS: Final = frozenset(
    -getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
)
STARTING: Final = "starting"  # before the first phase event
# What a person at a machine that has joined can do.
CONTINUE_JOINED: Final = "resume the run on machine 0 (--resume latest), then run its new line here"
_CONTINUES: Final = re.compile(
    r"\s*Continue with --resume latest\.$|[,;]?(?: then| and)? continue with --resume latest(?=\.$)"
)


@dataclass(frozen=True)
class RunEvidence:
    """What one start left behind: events, recorded failures, torchrun's report, the exit code of the process."""

    returncode: int
    events: EventSummary = field(default_factory=EventSummary)
    failures: Sequence[Failure] = ()
    report: LauncherReport = field(default_factory=LauncherReport)
    stop_reason: str = ""
    was_forced: bool = False
    killed_pids: frozenset[int] = frozenset()
    launcher: str = ""  # what started the ranks, if that is a separate process
    launcher_pid: int = 0
    ranks: range = field(default_factory=lambda: range(1))
    lost_folder: str = ""  # the run folder, if it was gone at the end, or in between


@dataclass(frozen=True)
class RunOutcome:
    """The exit code of a run and the failure behind it; None if it succeeded or was stopped on request."""

    exit_code: int
    failure: Failure | None = None
    phase: str = ""


def decide_outcome(evidence: RunEvidence) -> RunOutcome:
    """Trust the run's own last event first, then recorded failures, then torchrun, then the bare exit code."""
    phase = evidence.events.phase or (STARTING if 0 in evidence.ranks else "")
    if evidence.was_forced:
        return RunOutcome(CODE_OF_STOP.get(evidence.stop_reason, FAILED), None, phase)
    reported = evidence.events.exit_code
    if phase == REGROUPING:
        return RunOutcome(CODE_OF_STOP.get(evidence.stop_reason, FINISHED), None, phase)
    if reported is None and evidence.returncode == 0 and not _vanished(evidence):
        return RunOutcome(CODE_OF_STOP.get(evidence.stop_reason, FINISHED), None, phase)
    if reported in {FINISHED, INTERRUPTED, PAUSED, TERMINATED}:
        return RunOutcome(reported, None, phase)
    if reported is None and 0 not in evidence.ranks and evidence.report.signal and not evidence.failures:
        # torchrun exits with 1 after its ranks have stopped; how rank 0 has ended, only its own machine knows
        is_interrupt = evidence.report.signal == signal.SIGINT
        return RunOutcome(INTERRUPTED if is_interrupt else TERMINATED, None, phase)
    failure = _root_failure(evidence)
    code = exit_code_of(failure.kind) if reported is None else reported
    return RunOutcome(code, None if code in {INTERRUPTED, TERMINATED} else failure, phase)


def _vanished(evidence: RunEvidence) -> bool:
    """Whether rank 0 ended in the middle of the run without reporting it."""
    began = evidence.events.has_started or (0 in evidence.ranks and bool(evidence.events.phase))
    return not evidence.stop_reason and began


def outcome_of_failure(failure: Failure, events: EventSummary) -> RunOutcome:
    """The outcome of an unsupervised run whose cause is known; `events` are those so far."""
    return RunOutcome(exit_code_of(failure.kind), failure, events.phase_since_finished or STARTING)


def outcome_message(outcome: RunOutcome, folder: RunFolder) -> str:
    """The message for the user about a failure, without a final newline; empty without a failure."""
    failure = outcome.failure
    if failure is None:
        return ""
    at_startup = is_startup_failure(outcome)
    if at_startup:
        lines = [f"Training did not start: {_whose(failure, folder)}{failure.message}"]
    else:
        when = outcome.phase and f" while {outcome.phase}"
        kind = "" if failure.kind in _VAGUE_KINDS else f" ({failure.kind.replace('_', ' ')})"
        who = "the launcher" if failure.kind == "launcher" else f"rank {failure.rank}"
        lines = [
            f"Training stopped: {who} on {failure.host} failed{when}{kind}.",
            f"  What happened: {failure.message}",
        ]
    advice = _advice_for_joined(failure, folder) if folder.machine else failure.advice
    if advice:
        lines.append(f"  What to try: {advice}")
    if folder.machine and not at_startup:
        lines.append(f"  To continue: {CONTINUE_JOINED}.")
    elif not at_startup and "--resume" not in failure.advice and any(folder.backup_dir.glob("step-*")):
        lines.append(f"  To continue from the newest backup: --resume latest --run_name {folder.name}")
    if not at_startup and failure.traceback:
        lines.append(f"  Full traceback: {folder.log_file(failure.rank)}")
    elif not at_startup:
        # Only a supervisor writes the first; a rank that logged nothing has no log.
        logs = (folder.launcher_log, folder.log_file(failure.rank), folder.log_file(0))
        lines.append(f"  More in: {next((log for log in logs if log.exists()), folder.launcher_log)}")
    if folder.machine and not at_startup:
        lines.append("  The log of the whole run is on machine 0.")
    return "\n".join(lines)


def _advice_for_joined(failure: Failure, folder: RunFolder) -> str:
    """The advice for a person at a machine that has joined: its logs have other names, and it cannot resume a run."""
    is_here = failure.host == hostname()
    launcher_log = str(folder.launcher_log) if is_here else f"its launcher's log on {failure.host}"
    advice = _CONTINUES.sub("", failure.advice).replace("log/launcher.txt", launcher_log)
    return advice.replace("--resume latest", "--resume latest on machine 0").strip()


def _whose(failure: Failure, folder: RunFolder) -> str:
    """Where to look, if only another rank than 0 was rejected, such as for images that its machine lacks."""
    same = [each for each in read_failures(folder) if each.message == failure.message]
    return f"rank {failure.rank} on {failure.host}: " if failure.rank and len(same) < 2 else ""


def is_startup_failure(outcome: RunOutcome) -> bool:
    """Whether the run was rejected at startup, for a reason that the message states completely.

    A machine without rank 0 may know no phase, and so not whether training had started.
    """
    failure = outcome.failure
    is_rejection = failure is not None and failure.kind in _KINDS_BEFORE_START
    return is_rejection and outcome.phase not in {"", "training", "validation", "sampling", "saving", "test"}


def _root_failure(evidence: RunEvidence) -> Failure:
    """The failure that caused the others."""
    recorded = {failure.rank for failure in evidence.failures}
    unrecorded = [each for each in _own_exits(evidence) if each.rank not in recorded]
    primary = _primary_failure(evidence)
    if (sudden := _sudden_exit(unrecorded, primary)) is not None:
        return _failure_of_exit(sudden, evidence)
    # A rank that only noticed that the launcher was gone does not know the signal.
    if _launcher_was_killed(evidence) and (primary is None or primary.kind == "launcher"):
        return _failure_of_launcher(evidence)
    if primary is not None:
        # The others only noticed that it was gone; the launcher knows how it ended.
        seen = next((each for each in _own_exits(evidence) if each.rank == primary.rank), None)
        return primary if seen is None or primary.kind != "gone" else _failure_of_exit(seen, evidence)
    if not_terminated := [each for each in unrecorded if each.exit_code != _SIGTERM]:
        return _failure_of_exit(not_terminated[0], evidence)
    if evidence.failures:
        return evidence.failures[0]
    if unrecorded:
        return _failure_of_exit(unrecorded[0], evidence)
    return _failure_of_event(evidence) or _failure_of_launcher(evidence)


def _own_exits(evidence: RunEvidence) -> list[WorkerExit]:
    """How ranks ended that the supervisor has not killed itself."""
    return [each for each in evidence.report.exits if each.pid not in evidence.killed_pids]


def _sudden_exit(unrecorded: list[WorkerExit], primary: Failure | None) -> WorkerExit | None:
    """The rank that was killed first, unless an error was recorded before: one after it is most likely about that
    loss, with a text that no rule of error_rules.py matches."""
    sudden = next((each for each in unrecorded if each.is_first and each.exit_code in _ROOT_CAUSE_SIGNALS), None)
    return sudden if sudden is not None and (primary is None or primary.time >= sudden.time > 0) else None


def _launcher_was_killed(evidence: RunEvidence) -> bool:
    return bool(evidence.launcher) and evidence.returncode < 0 and evidence.launcher_pid not in evidence.killed_pids


def _primary_failure(evidence: RunEvidence) -> Failure | None:
    """The first failure that no other caused.

    Of two machines that lose each other, each accuses the other, and hears that from it if packets are lost in one
    direction only; this one is here.
    """
    primary = [failure for failure in evidence.failures if not failure.is_secondary]
    of_others = [each for each in primary if each.kind != "lost" or each.rank not in evidence.ranks]
    return next(iter(of_others or primary), None)


def _failure_of_exit(worker: WorkerExit, evidence: RunEvidence) -> Failure:
    host = hostname() if worker.host in {"", "localhost", system_hostname()} else worker.host
    if worker.exit_code == -signal.SIGABRT and evidence.report.native_error:
        kind, message, advice = explain_text(evidence.report.native_error, training=True)
        if kind == "mismatch":
            message = "The ranks called collectives that do not match each other: another rank sent more than this one "
            message += f"expected. Its stack is in log/launcher.txt ({evidence.report.native_error})"
        if advice:
            return Failure(worker.rank, host, kind, message, advice)
    if worker.exit_code < 0 or worker.exit_code > 255:
        kind, message, advice = _explain_signal(worker.exit_code)
        return Failure(worker.rank, host, kind, message, advice)
    line = evidence.report.error_line(worker.rank)
    if line and worker.exit_code == 1:
        explanation = explain_text(line, training=evidence.events.phase == "training")
        return Failure(worker.rank, host, *explanation)
    kind = _CODE_KINDS.get(worker.exit_code, "error")
    return Failure(worker.rank, host, kind, f"The process exited with code {worker.exit_code}.")


def _failure_of_event(evidence: RunEvidence) -> Failure | None:
    error = evidence.events.error
    if error is None:
        return None
    rank = evidence.ranks.start if error.rank is None else error.rank
    return Failure(rank, error.host, error.kind, error.message, error.advice)


def _failure_of_launcher(evidence: RunEvidence) -> Failure:
    """The failure of the launcher, or of the only process, if no rank is known to have failed."""
    rank, code = evidence.ranks.start, evidence.returncode
    if _launcher_was_killed(evidence):
        text = (
            f"The process that started the ranks ({evidence.launcher}, process {evidence.launcher_pid}) was terminated "
            f"externally ({_signal_name(code)}), and the ranks with it."
        )
        return Failure(rank, hostname(), "launcher", text, advice_for_kind("launcher"))
    line = evidence.report.error_line(rank)
    if code < 0 or code > 255:
        kind, message, advice = _explain_signal(code)
        return Failure(rank, hostname(), kind, message, advice)
    if line:
        return Failure(rank, hostname(), *explain_text(line))
    kind = _CODE_KINDS.get(code, "error")
    if code == 0 and evidence.lost_folder:
        text = (
            f"How the run ended is not known, because the run folder {evidence.lost_folder} was gone: deleted, or its "
        )
        text += "disk was unmounted."
        return Failure(rank, hostname(), "folder", text, "Bring the disk back; continue with --resume latest.")
    detail = " in the middle of the run, without an error" if code == 0 else ""
    return Failure(rank, hostname(), kind, f"The process exited with code {code}{detail}.")


def _explain_signal(code: int) -> tuple[str, str, str]:
    """Kind, message and advice for a process that terminated unexpectedly, by a signal."""
    if code == -9:
        return (
            "killed",
            "The process was killed externally (signal SIGKILL): by the operating system because memory "
            "ran out, by a job scheduler's limit, or by hand.",
            "Look for 'out of memory' in `dmesg`; if it is there, lower loader_workers or batch_size. "
            "Continue with --resume latest.",
        )
    if code in _EXTERNAL_SIGNALS:
        return (
            "killed",
            f"The process was terminated externally ({_signal_name(code)}).",
            "Continue with --resume latest.",
        )
    if code == -7 and sys.platform == "linux":
        return (
            "crashed",
            "The process lost a file that it had mapped into memory (signal SIGBUS): the base model or the cache was "
            "truncated or replaced in place during the run, or its disk, or /dev/shm, is full or gone.",
            "Replace a model file only by renaming a new one over it. Check the disk; continue with --resume latest.",
        )
    name = _signal_name(code)
    return (
        "crashed",
        f"The process crashed in native code ({name}), not in Python.",
        "log/launcher.txt shows where. Update the GPU driver, try compile=false and loader_workers=0, and "
        "continue with --resume latest.",
    )


def _signal_name(code: int) -> str:
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        # Windows has status codes instead, e.g. 0xC0000005 for an access violation.
        return f"code {code & 0xFFFFFFFF:#010x}"
