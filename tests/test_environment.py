"""The user's settings do not reach the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.environment import scrub
from tests.scripts.pytest_program import run_pytest

SEES = """import os
def test_sees(): assert not {"HF_HUB_OFFLINE", "RANK", "NO_COLOR", "HTTPS_PROXY"} & set(os.environ)
"""


def test_what_is_kept() -> None:
    kept = {"PATH": "/bin", "HOME": "/home/me", "CI": "true", "OMP_NUM_THREADS": "1", "PYTEST_XDIST_WORKER": "gw1"}
    environ = {**kept, "HF_TOKEN": "secret", "LC_ALL": "C", "SLURM_PROCID": "1", "TANDEM_START": "x", "DISPLAY": ":0"}
    scrub(environ)
    assert environ == {**kept, "LANG": "C.UTF-8"}


@pytest.mark.slow
def test_pytest_scrubs_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_sees.py").write_text(SEES)
    for name in ("HF_HUB_OFFLINE", "RANK", "NO_COLOR", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "1")
    ended = run_pytest(tmp_path, "-p", "tests.conftest")
    assert "1 passed" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-2000:]
