"""The first command of the README: from nothing to a model whose samples match their captions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from modules.run import RunFolder, read_events
from tests.runs import LAUNCHER_VARIABLES, ROOT

pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.timeout(1500)  # a guard against hanging; the training itself takes minutes on two cores
def test_the_demo_learns_colours_and_shapes(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    del variables["PYTEST_CURRENT_TEST"]
    variables.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        # 14 of its 25 epochs: from 12 on the samples pass with a margin
        [str(ROOT / "train_distributed.sh"), "all", "demo", "--run_name", "demo", "--set", "epochs=14"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    run = RunFolder(tmp_path / "runs" / "demo")
    assert list(read_events(run.events_file))[-1]["reason"] == "finished"
    newest = max(run.samples_dir.glob("*-grid.png"))
    with Image.open(newest) as grid:
        assert grid.width > 400
    checked = subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts" / "check_demo.py"),
            str(run.model_dir),
            "--grid",
            str(tmp_path / "g.png"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
