"""A run folder and configs for the tests of modules/run."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.run import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder that contains only its directories."""
    run = RunFolder(tmp_path / "runs" / "x")
    for directory in (run.commands_dir, run.log_dir):
        directory.mkdir(parents=True)
    return run
