"""What `./scripts/test.sh --fast` leaves out: slow tests, and the rest of a file that has taken its time."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import FAST_FILE_S
from tests.scripts.pytest_program import run_pytest

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
    ended = run_pytest(tmp_path, "-p", "tests.conftest", "--fast", "-W", "ignore::pytest.PytestUnknownMarkWarning")
    assert "2 passed, 1 skipped" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-2000:]
