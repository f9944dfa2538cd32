"""scripts/gpu_check.py on the pretended GPU, cut off and resumed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.gpu_cells import WORKS
from tests.fake_cuda.build import extension_file, obstacle
from tests.runs import ROOT, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
]
CELLS = ("DDP", "DDP, fp64: parity with one process")


def test_what_was_cut_off_is_resumed(tmp_path: Path) -> None:
    extension_file()
    command = [sys.executable, "-m", "tests.fake_cuda.run_gpu_check", "--resume", "--only=DDP", "--out", str(tmp_path)]
    first = subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=subprocess.DEVNULL)
    cells = tmp_path / "cells.jsonl"
    while not cells.exists() or len(cells.read_text().splitlines()) < 2:  # the machine, and a cell
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.wait()
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == WORKS, done.stdout + done.stderr
    assert "which has 1 cell." in done.stdout
    table = (tmp_path / "table.md").read_text()
    assert "1 GPU: NVIDIA H100 80GB HBM3, torch " in table
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:] == list(CELLS)
