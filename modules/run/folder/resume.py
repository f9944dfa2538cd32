"""Resolves `--resume` to a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from modules.config import ConfigError, ResumeError, TrainConfig
from modules.config.file_access import other_owner
from modules.config.io.files import read_data
from modules.files import FileFault, read_bytes
from modules.run.folder.links import refuse_links
from modules.run.folder.run_folder import RunFolder, check_run_name_free
from modules.run.folder.run_lock import check_not_training

LATEST = "latest"
_EXAMPLE = "Give a folder such as runs/NAME/backup/step-000500, or 'latest'"


def folder_to_resume(config: TrainConfig, resume: str) -> RunFolder:
    """The folder of the run to continue: the one named `run_name`, else the newest; or that of a given backup.

    A backup may also start a new run: if `run_name` differs from its run, a new folder is created.
    Raises ResumeError or ConfigError if there is no such run or backup, or the run is still being trained.
    """
    if resume == LATEST:
        name = config.run_name or newest_run(Path(config.runs_dir), config.family)
        return _open_idle(config.runs_dir, name)
    backup = backup_at(resume)
    run = backup.resolve().parent.parent
    is_of_run = RunFolder(run).config_file.is_file()
    if is_of_run and config.run_name in (None, run.name):
        return _open_idle(run.parent, run.name)
    return RunFolder.create(config)


def check_resume(config: TrainConfig, resume: str) -> None:
    """Raise what `folder_to_resume` would raise, without creating a folder."""
    if resume == LATEST:
        folder_to_resume(config, resume)
        return
    run = backup_at(resume).resolve().parent.parent
    if config.run_name not in (None, run.name):
        check_run_name_free(Path(config.runs_dir), str(config.run_name))


def backup_at(resume: str) -> Path:
    """The backup folder that --resume names.

    Raises ResumeError if it is not a backup, ConfigError if its run folder has links.
    """
    if not resume or not os.path.isdir(resume) or not any(Path(resume).glob("*.json")):
        raise ResumeError(f"resume: there is no backup at {resume!r}", _EXAMPLE)
    if os.path.isdir(Path(resume) / "backup"):
        raise ResumeError(f"resume: {resume!r} is a run folder, not one of its backups", _EXAMPLE)
    named = RunFolder(Path(os.path.abspath(resume)).parent.parent)
    if named.config_file.is_file():  # with a link in it, the backup would be that of another run
        refuse_links(named.path)
    return Path(resume)


def former_config(folder: RunFolder) -> bytes:
    """The content of the run's config, to restore if a new one is refused. Raises ResumeError."""
    try:
        return read_bytes(folder.config_file)
    except FileFault as fault:
        raise ResumeError(f"resume: {str(folder.config_file)!r} {fault}.", "Resume another run.") from None
    except OSError as error:
        what = f"resume: {str(folder.config_file)!r} cannot be read: {error.strerror or error}."
        raise ResumeError(what, "Resume another run.") from error


def _open_idle(runs_dir: str | Path, name: str) -> RunFolder:
    folder = RunFolder.open(runs_dir, name)
    check_not_training(folder)
    return folder


def newest_run(runs_dir: Path, family: str | None = None) -> str:
    """The name of the run of this user, of any family or this one, that wrote events last.

    Raises ResumeError if there is none.
    """
    runs = [folder for folder in runs_dir.glob("*") if RunFolder(folder).config_file.is_file()]
    if not runs:
        raise ResumeError(
            f"resume: there is no run in {str(runs_dir)!r} to continue",
            "Start one without --resume, or set runs_dir",
        )
    own = [folder for folder in runs if not other_owner(RunFolder(folder).config_file)]
    if not own:
        newest = max(runs, key=_last_activity)
        raise ResumeError(
            f"resume: the runs in {str(runs_dir)!r} belong to other users, the newest, {newest.name}, to "
            f"{other_owner(RunFolder(newest).config_file)}",
            f"To continue it all the same, name it: --run_name {newest.name}",
        )
    # a family of the user's own may be given by another path than before
    same = [folder for folder in own if family is None or Path(_family(folder)).name == Path(family).name]
    if not same:
        newest = max(own, key=_last_activity)
        raise ResumeError(
            f"resume: no run in {str(runs_dir)!r} trains {family!r}; the newest, {newest.name}, trains "
            f"{_family(newest)!r}",
            f"To continue it, omit --config, or name it: --run_name {newest.name}",
        )
    return max(same, key=_last_activity).name


def _family(run: Path) -> str:
    """Of the run's config; empty if it cannot be read."""
    try:
        return str(read_data(RunFolder(run).config_file).get("family", TrainConfig().family))
    except ConfigError:
        return ""


def _last_activity(folder: Path) -> float:
    run = RunFolder(folder)
    return max(file.stat().st_mtime for file in (run.events_file, run.config_file) if file.is_file())
