"""What the supervisor writes and says of a run whose processes have ended."""

from __future__ import annotations

from modules.run.folder.event_summary import EventSummary
from modules.run.folder.events import EventLog
from modules.run.folder.failures import Failure
from modules.run.folder.run_folder import RunFolder
from modules.run.html_report import update_report
from modules.run.supervise.outcome import CONTINUE_JOINED, REASON_OF_CODE, RunOutcome


def write_last_events(folder: RunFolder, events: EventSummary, outcome: RunOutcome, stop_reason: str) -> None:
    """Write the `error` and `finished` events that a dead rank 0 could not write; `events` are those that it wrote."""
    failure = outcome.failure
    error = events.error
    is_reported = failure is None or (error is not None and (error.rank, error.kind) == (failure.rank, failure.kind))
    is_finished = events.exit_code is not None
    if is_reported and is_finished:
        return
    log = EventLog(folder.events_file)
    if failure is not None and not is_reported:
        log.write("error", **failure.event_fields())
    if not is_finished:
        requested = stop_reason if outcome.exit_code else ""  # a signal may come after the end
        reason = "failed" if failure else requested or REASON_OF_CODE.get(outcome.exit_code, "finished")
        log.write("finished", reason=reason, exit_code=outcome.exit_code)
    log.close()
    update_report(folder)


def cause_of_restart(failure: Failure | None) -> str:
    """The failure in a sentence's end."""
    return f"rank {failure.rank} on {failure.host} failed: {failure.message}" if failure else "a rank failed."


def resume_hint(folder: RunFolder, ranks: range) -> str:
    """What --resume latest does after a stop without a backup; only the machine of rank 0 can see the backups."""
    if folder.machine:
        return f"to continue, {CONTINUE_JOINED}."
    if 0 in ranks and not any(folder.backup_dir.glob("step-*")):
        return "there is none yet, so --resume latest starts at the first step."
    return "--resume latest continues from the last one."
