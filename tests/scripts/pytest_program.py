"""Runs pytest as a program, on the files of a folder and with this project's conftest.py at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from modules import ROOT


def pytest_environment(folder: Path) -> dict[str, str]:
    """The environment of a pytest program. Its temporary folders are in `folder`: among those of other sessions it
    would first remove what full runs have left, gigabytes of them."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DEBUG_TEMPROOT": str(folder)}


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """How pytest has ended; what the tests write is in `folder`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        *options,
        "--rootdir",
        str(folder),
        str(folder),
    ]
    return subprocess.run(
        command,
        cwd=folder,
        env=pytest_environment(folder),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
