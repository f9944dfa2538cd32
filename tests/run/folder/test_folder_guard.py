"""The folder of a live run is recreated; the folder of an unnamed, rejected run is removed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from modules.config import TrainConfig
from modules.run import EventLog, RunFolder, read_events
from modules.run.folder.folder_guard import FolderGuard, remove_unstarted_run
from modules.run.folder.pidfile import find_launcher


def test_deleted_folder_is_recreated_with_config(tmp_path: Path) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="one"))
    before = folder.config_file.read_bytes()
    guard = FolderGuard(folder)
    assert guard.restore() is False
    shutil.rmtree(folder.path)
    assert guard.restore() is True
    assert guard.restore() is False
    assert folder.config_file.read_bytes() == before
    assert folder.commands_dir.is_dir()


def test_the_recreated_folder_is_that_of_this_process_until_its_run_ends(tmp_path: Path) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="one"))
    guard = FolderGuard(folder)
    folder.path.rename(tmp_path / "moved")
    guard.restore()
    launcher = find_launcher(folder)
    assert launcher is not None
    assert launcher.process.pid == os.getpid()
    guard.close()
    assert find_launcher(folder) is None


def test_events_continue_in_the_recreated_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="one"))
    log = EventLog(folder.events_file)
    log.write("phase", phase="training")
    guard = FolderGuard(folder)
    shutil.rmtree(folder.path)
    log.write("warning", message="while it is away")
    guard.restore()
    give_up = time.monotonic() + 100
    while not folder.events_file.exists() and time.monotonic() < give_up:
        log.flush()
    log.write("backup", step=5)
    log.close()
    assert [event["type"] for event in read_events(folder.events_file)] == ["warning", "backup"]


def test_only_empty_rejected_runs_are_removed(tmp_path: Path) -> None:
    def ended(name: str, code: int, *events: str) -> RunFolder:
        folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name=name))
        log = EventLog(folder.events_file)
        for event in events:
            log.write(event)
        log.write("finished", reason="failed", exit_code=code)
        log.close()
        folder.log_file(0).write_text("a traceback")
        return folder

    refused, failed = ended("refused", 2), ended("failed", 3)
    refused.tensorboard_dir.mkdir(exist_ok=True)
    for file in (refused.join_keys_file, refused.report_file, refused.tensorboard_dir / "events.out.tfevents.1"):
        file.touch()
    trained, listed = ended("trained", 4, "started"), ended("listed", 4)
    (listed.path / "problems.csv").write_text("a.png,broken")
    for folder in (refused, failed, trained, listed):
        remove_unstarted_run(folder)
    assert [each.path.exists() for each in (refused, failed, trained, listed)] == [False, True, True, True]
