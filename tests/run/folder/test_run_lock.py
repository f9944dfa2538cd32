"""A run that is being trained cannot be trained by a second process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules import ROOT
from modules.config import ResumeError, TrainConfig
from modules.run import RunFolder
from modules.run.folder.resume import folder_to_resume, newest_run
from modules.run.folder.run_lock import file_lock, is_training, training_has_ended, training_lock
from modules.run.supervise.supervisor import Supervisor

HOLDER = """
import sys
from pathlib import Path
from modules.run import RunFolder
from modules.run.folder.run_lock import training_lock
from modules.run.supervise.supervisor import Supervisor
with training_lock(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_running_training_blocks_resume(tmp_path: Path) -> None:
    config = TrainConfig(runs_dir=str(tmp_path), run_name="one")
    folder = RunFolder.create(config)
    assert folder_to_resume(config, "latest") == folder
    argv = [sys.executable, "-c", HOLDER, str(folder.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ResumeError, match="still being trained"):
            folder_to_resume(config, "latest")
        with training_lock(folder):  # does not stop a second trainer
            pass
        assert not training_has_ended(folder, within_s=0)
        holder.kill()  # like kill -9: nothing is cleaned up
        assert training_has_ended(folder, within_s=30)  # at once, or a moment later
    assert folder_to_resume(config, "latest") == folder


def test_the_newest_run_of_the_family_is_resumed(tmp_path: Path) -> None:
    shapes = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="shapes", family="pixel_diffusion"))
    asked = TrainConfig(runs_dir=str(tmp_path), family="classifier")
    with pytest.raises(ResumeError, match=r"no run in .* trains 'classifier'; the newest, shapes, trains 'pixel_diff"):
        folder_to_resume(asked, "latest")
    pets = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="pets", family="classifier"))
    os.utime(shapes.config_file, (2e9, 2e9))
    assert folder_to_resume(asked, "latest") == pets
    assert newest_run(tmp_path) == "shapes"
    RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="own", family="examples/own.py"))
    assert newest_run(tmp_path, "own.py") == "own"


@pytest.mark.slow
def test_second_supervisor_is_rejected(tmp_path: Path) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="one"))
    program = HOLDER.replace("training_lock", "supervisor_lock")
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


def test_run_folder_is_not_a_backup(tmp_path: Path) -> None:
    config = TrainConfig(runs_dir=str(tmp_path), run_name="one")
    folder = RunFolder.create(config)
    (tmp_path / "empty").mkdir()
    for given in ("", str(tmp_path / "empty"), str(folder.path), "x" * 5000):
        with pytest.raises(ResumeError, match="backup"):
            folder_to_resume(TrainConfig(runs_dir=str(tmp_path), run_name="two"), given)
    assert not (tmp_path / "two").exists()


def test_half_written_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="one"))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    of_dead = folder.path / f".partial-{ended.pid}-report.html"
    of_living = folder.path / f".partial-{os.getpid()}-report.html"
    for file in (of_dead, of_living):
        file.touch()
    with training_lock(folder):
        assert not of_dead.exists()
        assert of_living.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a process of Windows releases only what it has locked itself")
def test_a_link_in_a_foreign_run_releases_no_lock_of_this_process(tmp_path: Path) -> None:
    """A process loses its lock of a file once it closes the file, by whatever name it has opened it."""
    folder, own = RunFolder(tmp_path / "x"), tmp_path / "runner.lock"
    folder.make_directories()
    (folder.log_dir / "training.lock").symlink_to(own)
    lock = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with file_lock(own) as is_mine:
        assert (is_mine, is_training(folder)) == (True, False)
        other = subprocess.run([sys.executable, "-S", "-c", lock, str(own)], capture_output=True, text=True)
    assert "BlockingIOError" in other.stderr
