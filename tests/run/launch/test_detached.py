"""Starting a run in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import ResumeError
from modules.run.folder.commands import request_command
from modules.run.launch.detached import launch
from tests.app.fake_runs import active, make_fake_run


def test_a_run_that_another_window_has_resumed_is_left_alone(tmp_path: Path) -> None:
    folder = make_fake_run(tmp_path / "cats", steps=1)
    folder.console_file.write_text("step 1")
    with active(folder.path):
        request_command(folder, "stop")
        with pytest.raises(ResumeError, match="the run cats is active already"):
            launch(folder, resume=True)
    assert (folder.commands_dir / "stop").exists()
    assert folder.console_file.read_text() == "step 1"
