"""What tests/conftest.py does for xdist: groups of files, and a test that crashes its worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.pytest_program import run_pytest

PASSES = "def test_one(): pass\ndef test_two(): pass\n"
GROUPED = """import os, pathlib, pytest
pytestmark = pytest.mark.xdist_group("pair")
def test_worker(): pathlib.Path(__file__).with_suffix(".worker").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
CRASHES = "import os\ndef test_crash(): os.abort()\n"


@pytest.mark.slow
def test_a_group_stays_together_and_a_crashed_worker_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    for name in ("test_a.py", "test_b.py"):  # without a group, each worker would get one
        (tmp_path / name).write_text(GROUPED)
    (tmp_path / "test_first.py").write_text(PASSES + CRASHES + PASSES.replace("test_", "test_after_"))
    (tmp_path / "test_second.py").write_text(PASSES)
    (tmp_path / "test_third.py").write_text(CRASHES)
    ended = run_pytest(tmp_path, "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    assert "2 failed, 8 passed" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert ended.returncode == 1
    assert (tmp_path / "test_a.worker").read_text() == (tmp_path / "test_b.worker").read_text()
