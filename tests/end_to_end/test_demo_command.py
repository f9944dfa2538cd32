"""The first command of the README: from nothing to a model whose samples have the colours of their captions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from modules.run import RunFolder, read_events
from scripts import check_demo
from tests.runs import ROOT, environment

pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.timeout(1500)  # a guard against hanging; the training itself takes minutes on two cores
def test_the_demo_learns_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variables = {name: value for name, value in environment().items() if name != "PYTEST_CURRENT_TEST"}
    # 3 of its 25 epochs, from which on most colours are right, at half its resolution; the shapes are from 12 on
    settings = ["--set", "epochs=3", "--set", "resolution=16"]
    done = subprocess.run(
        [str(ROOT / "train_distributed.sh"), "all", "demo", "--run_name", "demo", *settings],
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
    check_demo.main([str(run.model_dir), "--samples", "24", "--resolution", "16", "--grid", str(tmp_path / "g.png")])
    checked = capsys.readouterr()
    accuracies = checked.out.splitlines()[-1]
    colours, backgrounds = (
        float(re.search(rf"([0-9.]+)% right {what}", accuracies)[1])  # type: ignore[index]  # or it fails here
        for what in ("colours", "backgrounds")
    )
    assert backgrounds >= 90.0, checked
    assert colours >= 50.0, checked  # 87.5 % now, 37.5 % an epoch earlier; an eighth by chance
