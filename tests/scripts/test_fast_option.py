"""What `./scripts/test.sh --fast` leaves out: slow tests, and the rest of a file that has taken its time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from modules import ROOT
from tests.conftest import FAST_FILE_S

LONG = f"""import pathlib, pytest, time
@pytest.fixture(scope="module", autouse=True)
def ends():
    yield
    pathlib.Path("ended").touch()
@pytest.mark.slow
def test_slow(): assert False
def test_first(): time.sleep({FAST_FILE_S})
def test_second(): assert False
def test_last(): assert False
"""
NEXT = "import pathlib\ndef test_next(): assert pathlib.Path('ended').exists()\n"
NOT_IMPORTED = "import pytest\npytestmark = [\n    pytest.mark.long,\n    pytest.mark.slow,\n]\nraise ValueError\n"


def test_what_is_left_out(tmp_path: Path) -> None:
    for name, text in {"a_long": LONG, "b_next": NEXT, "c_slow": NOT_IMPORTED}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--fast"]
    ended = subprocess.run(
        [*command, "-W", "ignore::pytest.PytestUnknownMarkWarning", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "2 passed, 1 skipped" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-2000:]
