"""What a restarted start of a run resumes."""

from __future__ import annotations

import time

import psutil
import pytest

from modules.run import RunFolder
from modules.run.launch.restarts import folder_of_previous_start, remember_run_folder, resume_since


@pytest.mark.parametrize(
    ("resume", "later_s", "resumed"),
    [
        (None, -5, "latest"),
        (None, 7200, "latest"),  # the clock was set back since
        ("latest", 7200, "latest"),
        ("runs/x/backup/step-000001", -5, "latest"),
        ("runs/x/backup/step-000001", 7200, "runs/x/backup/step-000001"),
    ],
)
def test_the_newest_backup_of_this_start_is_resumed(
    folder: RunFolder, resume: str | None, later_s: float, resumed: str
) -> None:
    started = time.time() + later_s
    assert resume_since(started, resume, folder) == resume, "there is no backup yet"
    (folder.backup_dir / "step-000004").mkdir(parents=True)
    (folder.backup_dir / "step-000004" / "manifest.json").touch()
    assert resume_since(started, resume, folder) == resumed


def test_a_clock_that_is_set_does_not_hide_the_run_folder(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    remember_run_folder(folder)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    before = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: before(process) - 7200)
    found = folder_of_previous_start(folder.path.parent)
    assert found is not None
    assert found.path == folder.path
