"""Runs pytest as a program, on the files of a folder and with this project's conftest.py at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from modules import ROOT


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
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
