"""How a run ended: its exit code and the one failure to tell, decided from what was left behind."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from modules.machine import hostname
from modules.run.commands import INTERRUPTED as ASKED_INTERRUPT
from modules.run.commands import PAUSED as ASKED_PAUSE
from modules.run.commands import TERMINATED as ASKED_TERMINATE
from modules.run.events import Event
from modules.run.exit_codes import DECIDED, FAILED, FINISHED, INTERRUPTED, PAUSED, TERMINATED, exit_code_of
from modules.run.explanations import explain_kind, explain_text
from modules.run.failures import Failure
from modules.run.launcher_log import LauncherReport, WorkerExit
from modules.run.run_folder import RunFolder

_ASKED_CODES: Final = {ASKED_INTERRUPT: INTERRUPTED, ASKED_TERMINATE: TERMINATED, ASKED_PAUSE: PAUSED}
_KINDS_BEFORE_START: Final = frozenset({"config", "resume", "data"})
_CODE_KINDS: Final = {exit_code_of(kind): kind for kind in ("config", "data", "interrupted", "terminated")}
# A process that gets one of these is where it began. SIGABRT is missing on purpose: NCCL's watchdog ends a
# healthy rank with it when another has died.
_SUDDEN_DEATHS: Final = frozenset({-9, -11, -7})
_SIGTERM: Final = -15
STARTING: Final = "starting"  # before the first phase that a run tells of


@dataclass(frozen=True)
class Traces:
    """What one start left behind: events, recorded failures, torchrun's report, the process's own end."""

    returncode: int
    events: Sequence[Event] = ()
    failures: Sequence[Failure] = ()
    report: LauncherReport = field(default_factory=LauncherReport)
    asked: str = ""
    was_cut_short: bool = False
    victims: frozenset[int] = frozenset()
    launcher: str = ""  # what started the ranks, where that is a process of its own
    launcher_id: int = 0
    ranks: range = field(default_factory=lambda: range(1))


@dataclass(frozen=True)
class Ending:
    """The exit code of the protocol, and the failure behind it; None for an end that somebody wanted."""

    exit_code: int
    failure: Failure | None = None
    phase: str = ""


def decide_ending(traces: Traces) -> Ending:
    """Trust what the run itself said last, then recorded failures, then torchrun, then the bare exit code."""
    phase = _last_phase(traces.events) or (STARTING if 0 in traces.ranks else "")
    if traces.was_cut_short:
        return Ending(_ASKED_CODES.get(traces.asked, FAILED), None, phase)
    said = said_exit_code(traces.events)
    if said is None and traces.returncode == 0 and not _left_in_the_middle(traces):
        return Ending(_ASKED_CODES.get(traces.asked, FINISHED), None, phase)
    if said in {FINISHED, INTERRUPTED, PAUSED, TERMINATED}:
        return Ending(said, None, phase)
    failure = _root_failure(traces)
    code = exit_code_of(failure.kind) if said is None else said
    return Ending(code, None if code in {INTERRUPTED, TERMINATED} else failure, phase)


def _left_in_the_middle(traces: Traces) -> bool:
    """Whether rank 0 was at work and said nothing of an end."""
    started = next((at for at, event in enumerate(traces.events) if event["type"] == "started"), None)
    return started is not None and not traces.asked


def said_exit_code(events: Sequence[Event]) -> int | None:
    """The exit code of the last `finished` event; None without a valid one."""
    for event in reversed(events):
        if event["type"] == "finished":
            code = event.get("exit_code")
            return code if isinstance(code, int) and code in DECIDED else None
    return None


def ending_by(failure: Failure, events: Sequence[Event]) -> Ending:
    """The end of a run that nobody watches over, by what is known to be its cause; `events` so far."""
    ends = [number for number, event in enumerate(events, start=1) if event["type"] == "finished"]
    phase = _last_phase(events[ends[-1] if ends else 0 :]) or STARTING
    return Ending(exit_code_of(failure.kind), failure, phase)


def ending_message(ending: Ending, folder: RunFolder) -> str:
    """What to tell the user: nothing, or the one message about the failure, without a last newline."""
    failure = ending.failure
    if failure is None:
        return ""
    refused = is_refusal(ending)
    if refused:
        lines = [f"Training did not start: {failure.message}"]
    else:
        when, kind = ending.phase and f" while {ending.phase}", failure.kind.replace("_", " ")
        who = "the launcher" if failure.kind == "launcher" else f"rank {failure.rank}"
        lines = [
            f"Training stopped: {who} on {failure.host} failed{when} ({kind}).",
            f"  What happened: {failure.message}",
        ]
    if failure.advice:
        lines.append(f"  What to try: {failure.advice}")
    if not refused and failure.traceback:
        lines.append(f"  Full traceback: {folder.log_file(failure.rank)}")
    elif not refused:
        # Only a supervisor keeps the first; a rank that had nothing to say has no log.
        logs = (folder.launcher_log, folder.log_file(failure.rank), folder.log_file(0))
        lines.append(f"  More in: {next((log for log in logs if log.exists()), folder.launcher_log)}")
    return "\n".join(lines)


def is_refusal(ending: Ending) -> bool:
    """Whether the run ended before it began, for a reason that the message says whole.

    A machine without rank 0 may know no phase, and then not whether training had begun.
    """
    failure = ending.failure
    is_known = failure is not None and failure.kind in _KINDS_BEFORE_START
    return is_known and ending.phase not in {"", "training", "sampling", "saving"}


def _root_failure(traces: Traces) -> Failure:
    """The failure that caused the others."""
    recorded = {failure.rank for failure in traces.failures}
    unrecorded = [each for each in traces.report.exits if each.rank not in recorded and each.pid not in traces.victims]
    primary = next((failure for failure in traces.failures if not failure.is_echo), None)
    sudden = next((each for each in unrecorded if each.is_first and each.exit_code in _SUDDEN_DEATHS), None)
    if sudden is not None and (primary is None or primary.time >= sudden.time > 0):
        # An error recorded after another rank had been killed is most likely about that loss, in words that
        # no rule of explanations.py knows.
        return _failure_of_exit(sudden, traces)
    if primary is not None:
        # The others saw only that it was gone; the launcher knows how it ended.
        exits = (each for each in traces.report.exits if each.rank == primary.rank and each.pid not in traces.victims)
        seen = next(exits, None) if primary.kind == "gone" else None
        return primary if seen is None else _failure_of_exit(seen, traces)
    if traces.launcher and traces.returncode < 0 and traces.launcher_id not in traces.victims:
        return _failure_of_launcher(traces)
    own = [each for each in unrecorded if each.exit_code != _SIGTERM]
    if own:
        return _failure_of_exit(own[0], traces)
    if traces.failures:
        return traces.failures[0]
    if unrecorded:
        return _failure_of_exit(unrecorded[0], traces)
    return _failure_of_event(traces) or _failure_of_launcher(traces)


def _failure_of_exit(worker: WorkerExit, traces: Traces) -> Failure:
    host = worker.host if worker.host not in {"", "localhost"} else hostname()
    if worker.exit_code == -signal.SIGABRT and traces.report.native_error:
        kind, message, advice = explain_text(traces.report.native_error, training=True)
        if kind == "mismatch":
            message = "The ranks called collectives that do not match each other: another rank sent more than this one "
            message += f"had room for. Its stack is in log/launcher.txt ({traces.report.native_error})"
        if advice:
            return Failure(worker.rank, host, kind, message, advice)
    if worker.exit_code < 0 or worker.exit_code > 255:
        kind, message, advice = _explain_signal(worker.exit_code)
        return Failure(worker.rank, host, kind, message, advice)
    line = traces.report.error_line(worker.rank)
    if line and worker.exit_code == 1:
        explanation = explain_text(line, training=_last_phase(traces.events) == "training")
        return Failure(worker.rank, host, *explanation)
    kind = _CODE_KINDS.get(worker.exit_code, "error")
    return Failure(worker.rank, host, kind, f"The process ended itself with exit code {worker.exit_code}.")


def _failure_of_event(traces: Traces) -> Failure | None:
    event = next((each for each in reversed(traces.events) if each["type"] == "error"), None)
    if event is None:
        return None
    rank = event.get("rank")
    host, kind, message, advice = (str(event.get(name) or "") for name in ("host", "kind", "message", "advice"))
    return Failure(rank if isinstance(rank, int) else traces.ranks.start, host, kind, message, advice)


def _failure_of_launcher(traces: Traces) -> Failure:
    """No rank is known to have failed: the launcher itself did, or the only process there was."""
    rank, code = traces.ranks.start, traces.returncode
    if traces.launcher and code < 0 and traces.launcher_id not in traces.victims:
        text = f"The process that started the ranks ({traces.launcher}, process {traces.launcher_id}) was ended from "
        text += f"outside ({_signal_name(code)}), and the ranks with it."
        return Failure(rank, hostname(), "launcher", text, explain_kind("launcher"))
    line = traces.report.error_line(rank)
    if code < 0 or code > 255:
        kind, message, advice = _explain_signal(code)
        return Failure(rank, hostname(), kind, message, advice)
    if line:
        return Failure(rank, hostname(), *explain_text(line))
    kind = _CODE_KINDS.get(code, "error")
    where = " in the middle of the run, without an error" if code == 0 else ""
    return Failure(rank, hostname(), kind, f"The process ended with exit code {code}{where}.")


def _explain_signal(code: int) -> tuple[str, str, str]:
    """Kind, message and advice for a process that ended without saying a word."""
    if code == -9:
        return (
            "killed",
            "The process was killed from outside (signal SIGKILL): by the operating system because memory "
            "ran out, by a job scheduler's limit, or by hand.",
            "Look for 'out of memory' in `dmesg`; lower loader_workers or batch_size if it is there. "
            "Continue with --resume latest.",
        )
    if code == _SIGTERM:
        return (
            "killed",
            "The process was ended from outside (signal SIGTERM).",
            "Continue with --resume latest.",
        )
    name = _signal_name(code)
    return (
        "crashed",
        f"The process crashed inside native code ({name}), not in Python.",
        "log/launcher.txt shows where. Update the GPU driver, try compile=false and loader_workers=0, and "
        "continue with --resume latest.",
    )


def _signal_name(code: int) -> str:
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        # Windows has status codes instead, such as 0xC0000005 for an access violation.
        return f"code {code & 0xFFFFFFFF:#010x}"


def _last_phase(events: Sequence[Event]) -> str:
    last = next((event for event in reversed(events) if event["type"] in {"phase", "step"}), None)
    if last is None:
        return ""
    return "training" if last["type"] == "step" else str(last.get("phase") or "")
