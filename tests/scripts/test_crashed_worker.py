"""A test that crashes its xdist worker fails; the others run, and pytest ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from modules import ROOT

PASSES = "def test_one(): pass\ndef test_two(): pass\n"
CRASHES = "import os\ndef test_crash(): os.abort()\n"


def test_a_crashed_worker_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    (tmp_path / "test_first.py").write_text(PASSES + CRASHES + PASSES.replace("test_", "test_after_"))
    (tmp_path / "test_second.py").write_text(PASSES)
    (tmp_path / "test_third.py").write_text(CRASHES)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "2 failed, 6 passed" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert ended.returncode == 1
