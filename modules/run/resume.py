"""Which run `--resume` means."""

from __future__ import annotations

from pathlib import Path

from modules.config import ResumeError, TrainConfig
from modules.run.run_folder import RunFolder

LATEST = "latest"


def folder_to_resume(config: TrainConfig, resume: str) -> RunFolder:
    """The folder of the run to continue: named by `run_name`, or the newest one; or that of a given backup.

    A backup of one run may also begin another: with a `run_name` of its own, that run's folder is made.
    Raises ResumeError or ConfigError where there is no such run or backup.
    """
    if resume == LATEST:
        name = config.run_name or newest_run(Path(config.runs_dir))
        return RunFolder.open(config.runs_dir, name)
    backup = Path(resume)
    if not backup.is_dir():
        raise ResumeError(
            f"resume: there is no backup at {resume!r}",
            "Give a folder such as runs/NAME/backup/step-000500, or 'latest'",
        )
    run = backup.resolve().parent.parent
    is_of_run = RunFolder(run).config_file.is_file()
    if is_of_run and config.run_name in (None, run.name):
        return RunFolder.open(run.parent, run.name)
    return RunFolder.create(config)


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
