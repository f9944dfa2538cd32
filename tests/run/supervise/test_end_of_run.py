"""What the supervisor writes for a rank 0 that could not."""

from __future__ import annotations

import pytest

from modules.run import RunFolder
from modules.run.folder.event_summary import EventSummary
from modules.run.supervise.outcome import RunOutcome
from modules.run.supervise.supervisor import write_last_events
from tests.run.supervise.supervised import last_finished


@pytest.mark.parametrize(
    ("code", "stop_reason", "reason"),
    [(0, "", "finished"), (0, "interrupted", "finished"), (130, "", "interrupted"), (130, "terminated", "terminated")],
)
def test_the_reason_of_the_end(folder: RunFolder, code: int, stop_reason: str, reason: str) -> None:
    """A rank that was interrupted, but not by the supervisor, is no finished run; a signal may come after the end."""
    write_last_events(folder, EventSummary(), RunOutcome(code), stop_reason)
    last = last_finished(folder)
    assert (last["reason"], last["exit_code"]) == (reason, code)
