"""A cache folder that vanishes during the run, with loader workers of every kind: one sentence names the file."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from modules.run import RunFolder
from tests.runs import ROOT, Run, assert_error_message, environment, tiny_config, train_command

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

GUARD_S = 120.0
STEPS_OF_AN_EPOCH = 6  # 41 images, 8 a step


@pytest.mark.parametrize(
    ("workers", "persistent", "validates"), [(0, False, False), (2, False, False), (2, False, True), (1, True, True)]
)
def test_a_cache_that_vanishes_between_epochs(
    images: Path, tmp_path: Path, workers: int, persistent: bool, validates: bool
) -> None:
    config = tiny_config(
        images,
        tmp_path,
        loader_workers=workers,
        persistent_workers=persistent,
        validate_every="1 epoch" if validates else "never",
        validation_split=0.2 if validates else 0.0,
        epochs=100_000,
        max_steps=1_000_000,
        backup_every="5 steps",
        family_options={"slow_step_s": 0.05},
    )
    cache = tmp_path / "cache"
    argv = train_command(config, tmp_path / "config.json")
    process = subprocess.Popen(
        argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    run = Run(RunFolder(Path(config.runs_dir) / str(config.run_name)))
    deadline = time.monotonic() + GUARD_S
    while not run.folder.events_file.exists() or len(run.events("step")) < 8:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    shutil.rmtree(cache)
    if persistent or workers == 0:  # the files that are open may be read on
        goal = len(run.events("step")) + 4 * STEPS_OF_AN_EPOCH
        deadline = time.monotonic() + GUARD_S
        while process.poll() is None and len(run.events("step")) < goal:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
    output, _ = process.communicate(timeout=GUARD_S)
    if process.returncode == 143:
        assert persistent or workers == 0, output
        return
    done = subprocess.CompletedProcess(argv, process.returncode, output, "")
    assert_error_message(done, 4, f"The cache folder {str(cache)!r} is gone", "--resume latest")
    assert output.count("Training stopped") == 1
