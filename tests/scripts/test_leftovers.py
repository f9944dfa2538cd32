"""A pytest that is terminated takes with it what its tests have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.leftovers import MARK
from tests.scripts.pytest_program import pytest_environment

HANGS = """import pathlib, subprocess, time
def test_hang():
    daemon = subprocess.Popen(["sleep", "300"], start_new_session=True)
    pathlib.Path("daemon.tmp").write_text(str(daemon.pid))
    pathlib.Path("daemon.tmp").rename("daemon")
    time.sleep(300)
"""


@pytest.mark.skipif(os.name != "posix", reason="a killed program's programs are looked for on Linux and macOS")
@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, "0"), (signal.SIGTERM, "1"), (signal.SIGKILL, "1")])
def test_no_daemon_outlives_pytest(tmp_path: Path, number: signal.Signals, workers: str) -> None:
    (tmp_path / "test_hang.py").write_text(HANGS)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-n", workers, "--rootdir", str(tmp_path)]
    environment = {name: value for name, value in pytest_environment(tmp_path).items() if name != MARK}
    pytest_program = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    while not (tmp_path / "daemon").exists():
        assert pytest_program.poll() is None
        time.sleep(0.05)
    daemon = psutil.Process(int((tmp_path / "daemon").read_text()))
    pytest_program.send_signal(number)
    pytest_program.wait()
    daemon.wait(60)
