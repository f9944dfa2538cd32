"""Without a supervisor the ranks themselves report why a run has failed, once: rank 0 does, or rank 1 in its place."""

from __future__ import annotations

import time
from typing import Final

from modules.monitoring import Report, RunReport
from modules.run import EventLog, EventReader, Failure, RunFolder, exit_code_of, root_cause
from modules.run.console import warn
from modules.run.folder.event_summary import EventSummary
from modules.run.launch.fatal_startup import is_fatal, report_fatal_startup
from modules.run.launch.restarts import restarts_left
from modules.run.supervise.outcome import outcome_message, outcome_of_failure

# How long a rank gives the others to report what it would otherwise report itself.
_OTHERS_REPORT_WITHIN_S: Final = 3.0


def report_failure(failure: Failure, folder: RunFolder, report: Report, rank: int) -> None:
    """Report why the run ended as rank 0, or as rank 1 if rank 0 itself is what failed."""
    report_fatal_startup(exit_code_of(failure.kind))
    if restarts_left() and not is_fatal(exit_code_of(failure.kind)):
        report.warning(
            f"Rank {failure.rank} on {failure.host} failed: {failure.message} torchrun starts all ranks again, "
            f"which resume from the newest backup ({restarts_left()} restarts left)."
        )
    elif rank == 0:
        _report_end(failure, folder, report)
    elif rank == 1 and failure.rank == 0 and not _rank0_reported(folder, failure):
        _report_end(failure, folder, RunReport(EventLog(folder.events_file), None))


def cause_of(folder: RunFolder, own: Failure) -> Failure:
    """The failure that caused this one; for a secondary failure, after a moment in which the cause is written down."""
    deadline = time.monotonic() + _OTHERS_REPORT_WITHIN_S
    while own.is_secondary and time.monotonic() < deadline:
        cause = root_cause(folder)
        if cause is not None and not cause.is_secondary:
            return cause
        time.sleep(0.1)
    return root_cause(folder) or own


def _report_end(failure: Failure, folder: RunFolder, report: Report) -> None:
    outcome = outcome_of_failure(failure, EventSummary.of_file(folder.events_file))
    report.failed(failure)
    warn(outcome_message(outcome, folder))


def _rank0_reported(folder: RunFolder, failure: Failure) -> bool:
    """Whether rank 0 reported how the run ended, before or soon after its failure was known."""
    events, reader = EventSummary(), EventReader(folder.events_file)
    deadline = time.monotonic() + _OTHERS_REPORT_WITHIN_S
    while time.monotonic() < deadline:
        events.read(reader)
        if events.finished_at is not None and events.finished_at > failure.time - _OTHERS_REPORT_WITHIN_S:
            return True
        time.sleep(0.1)
    return False
