"""scripts/gpu_check.py on the pretended GPU; tests/scripts cuts it off and resumes it."""

from __future__ import annotations

import subprocess
import sys
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
CELL = "DDP, fp64: parity with one process"


def test_it_checks_a_mode_and_names_the_gpu(tmp_path: Path) -> None:
    extension_file()
    command = [sys.executable, "-m", "tests.fake_cuda.run_gpu_check", f"--only={CELL}", "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == WORKS, done.stdout + done.stderr
    table = (tmp_path / "table.md").read_text()
    assert "1 GPU: NVIDIA H100 80GB HBM3, torch " in table
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:] == [CELL]
