"""Every program in scripts/ starts by its path, from any folder, with any Python that has the packages."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
PROGRAMS = sorted(file for file in SCRIPTS.glob("*.py") if '__name__ == "__main__"' in file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_shows_its_help(program: Path, tmp_path: Path) -> None:
    # PYTHONPATH finds the packages but reads no .pth file, so only the program itself can find `modules`.
    python: str = getattr(sys, "_base_executable", sys.executable)
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    command = [python, str(program), "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
