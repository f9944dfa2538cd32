"""What start_ui.sh starts, with a Python in .venv that only prints its arguments."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="start_ui.sh is for POSIX shells")


def make_program(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def start(root: Path, *arguments: str, setup: str = "true") -> subprocess.CompletedProcess[str]:
    shutil.copy2(ROOT / "start_ui.sh", root)
    make_program(root / "scripts/setup.sh", setup)
    make_program(root / ".venv/bin/python", 'pwd; echo "$PYTHONPATH"; for word; do echo "$word"; done')
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    command = [str(root / "start_ui.sh"), *arguments]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, encoding="utf-8", check=False)


def test_the_window_opens_in_the_folder_it_is_started_in(tmp_path: Path) -> None:
    root = tmp_path / "a folder with spaces"
    root.mkdir()
    done = start(root, "--config", "my own.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["/", str(root), "-P", "-m", "app", "--config", "my own.yaml"]


def test_failed_setup_ends_it(tmp_path: Path) -> None:
    done = start(tmp_path, setup="echo sorry >&2; exit 1")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "sorry\n")
