"""A run that is still being trained is not trained by a second process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import ResumeError, TrainConfig
from modules.run import RunFolder
from modules.run.resume import folder_to_resume
from modules.run.run_lock import training_in
from modules.run.supervise import Supervisor
from tests.runs import ROOT

HOLDER = """
import sys
from pathlib import Path
from modules.run import RunFolder
from modules.run.run_lock import training_in
from modules.run.supervise import Supervisor
with training_in(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_resumed_only_after_its_trainer_has_ended(tmp_path: Path) -> None:
    config = TrainConfig(runs_dir=str(tmp_path), run_name="one")
    folder = RunFolder.create(config)
    assert folder_to_resume(config, "latest") == folder
    argv = [sys.executable, "-c", HOLDER, str(folder.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ResumeError, match="still being trained"):
            folder_to_resume(config, "latest")
        with training_in(folder):  # a second trainer that came all the same is not stopped here
            pass
        holder.kill()  # as kill -9 does it, nothing is cleaned up
    assert folder_to_resume(config, "latest") == folder


def test_two_supervisors_of_the_same_second_are_kept_apart(tmp_path: Path) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="one"))
    program = HOLDER.replace("training_in", "supervising_in")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        supervisor = Supervisor([sys.executable, "-c", "raise SystemExit(1)"], folder)
        with pytest.raises(ResumeError, match="still being trained"):
            supervisor.run()
        holder.kill()
    assert Supervisor([sys.executable, "-c", ""], folder).run() == 0


def test_a_run_folder_is_no_backup(tmp_path: Path) -> None:
    config = TrainConfig(runs_dir=str(tmp_path), run_name="one")
    folder = RunFolder.create(config)
    (tmp_path / "empty").mkdir()
    for given in ("", str(tmp_path / "empty"), str(folder.path), "x" * 5000):
        with pytest.raises(ResumeError, match="backup"):
            folder_to_resume(TrainConfig(runs_dir=str(tmp_path), run_name="two"), given)
    assert not (tmp_path / "two").exists()
