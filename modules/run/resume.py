"""Which run `--resume` means."""

from __future__ import annotations

import os
from pathlib import Path

from modules.config import ResumeError, TrainConfig
from modules.run.run_folder import RunFolder, check_free
from modules.run.run_lock import check_not_training

LATEST = "latest"
_EXAMPLE = "Give a folder such as runs/NAME/backup/step-000500, or 'latest'"


def folder_to_resume(config: TrainConfig, resume: str) -> RunFolder:
    """The folder of the run to continue: named by `run_name`, or the newest one; or that of a given backup.

    A backup of one run may also begin another: with a `run_name` of its own, that run's folder is made.
    Raises ResumeError or ConfigError where there is no such run or backup, or where the run is still going.
    """
    if resume == LATEST:
        name = config.run_name or newest_run(Path(config.runs_dir))
        return _opened(config.runs_dir, name)
    backup = given_backup(resume)
    run = backup.resolve().parent.parent
    is_of_run = RunFolder(run).config_file.is_file()
    if is_of_run and config.run_name in (None, run.name):
        return _opened(run.parent, run.name)
    return RunFolder.create(config)


def check_resume(config: TrainConfig, resume: str) -> None:
    """Raise what `folder_to_resume` would raise, and make no folder."""
    if resume == LATEST:
        folder_to_resume(config, resume)
        return
    run = given_backup(resume).resolve().parent.parent
    if config.run_name not in (None, run.name):
        check_free(Path(config.runs_dir), str(config.run_name))


def given_backup(resume: str) -> Path:
    """The folder that --resume names. Raises ResumeError where that is no backup."""
    if not resume or not os.path.isdir(resume) or not any(Path(resume).glob("*.json")):
        raise ResumeError(f"resume: there is no backup at {resume!r}", _EXAMPLE)
    if os.path.isdir(Path(resume) / "backup"):
        raise ResumeError(f"resume: {resume!r} is a run's folder, not one of its backups", _EXAMPLE)
    return Path(resume)


def _opened(runs_dir: str | Path, name: str) -> RunFolder:
    folder = RunFolder.open(runs_dir, name)
    check_not_training(folder)
    return folder


def newest_run(runs_dir: Path) -> str:
    """The name of the run that wrote events last. Raises ResumeError where there is none."""
    runs = [folder for folder in runs_dir.glob("*") if RunFolder(folder).config_file.is_file()]
    if not runs:
        raise ResumeError(
            f"resume: there is no run in {str(runs_dir)!r} to continue",
            "Start one without --resume, or set runs_dir",
        )
    return max(runs, key=_last_sign_of_life).name


def _last_sign_of_life(folder: Path) -> float:
    run = RunFolder(folder)
    return max(file.stat().st_mtime for file in (run.events_file, run.config_file) if file.is_file())
