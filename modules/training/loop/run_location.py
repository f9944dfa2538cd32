"""Which run folder a start works in."""

from __future__ import annotations

import json
import os
from pathlib import Path

from modules.config import ConfigError, TandemError, TrainConfig, TrainingError
from modules.distributed import RankEnv, RunStore, parse_value, refusals_published
from modules.files import Record
from modules.run import RunFolder
from modules.run.folder.links import refuse_links
from modules.run.folder.resume import LATEST, folder_to_resume
from modules.run.launch.restarts import folder_of_previous_start, remember_run_folder


def shared_run_folder(config: TrainConfig, rank_env: RankEnv, store: RunStore, resume: str | None) -> RunFolder:
    """The run folder under torchrun or srun started by hand: rank 0 makes it and sends the others its path."""
    if rank_env.rank == 0:
        try:
            folder = choose_run_folder(config, resume)
            store.set("run_folder", json.dumps({"path": str(folder.path)}))
        except TandemError as error:
            store.set("run_folder", json.dumps({"path": "", "refusal": error.message, "advice": error.advice}))
            raise
        return folder
    try:
        text = store.get("run_folder")
    except RuntimeError as error:  # torch's DistStoreError and DistNetworkError
        raise TrainingError(
            f"rank {rank_env.rank} did not get the run folder from rank 0, which has ended or hangs: {error}",
            "Look at the message of rank 0.",
        ) from error
    sent = parse_value(_SentFolder, text, "the run folder of rank 0")
    if not sent.path:
        raise ConfigError(sent.refusal, sent.advice)
    with refusals_published(rank_env, store):
        _check_sent(Path(sent.path), config, resume)
        refuse_links(Path(sent.path))  # another machine may have another folder at this path
    return RunFolder(Path(sent.path))


class _SentFolder(Record):
    """What rank 0 sends: a path, or why there is none."""

    path: str
    refusal: str = ""
    advice: str = ""


def _check_sent(folder: Path, config: TrainConfig, resume: str | None) -> None:
    """Raise ConfigError unless the folder is in `runs_dir`, or that of the backup to resume."""
    runs_dir = os.path.abspath(config.runs_dir)
    is_resumed = resume not in {None, LATEST} and folder == Path(str(resume)).resolve().parent.parent
    if not is_resumed and os.path.dirname(os.path.abspath(folder)) != runs_dir:
        raise ConfigError(
            f"rank 0 names {str(folder)!r} as the run folder, which is not in runs_dir ({runs_dir})",
            "Start every process with the same runs_dir",
        )


def choose_run_folder(config: TrainConfig, resume: str | None) -> RunFolder:
    """A new run's folder, or that of the run to continue; after a restart the one of the previous start."""
    if previous := folder_of_previous_start(Path(config.runs_dir)):
        return previous
    folder = RunFolder.create(config) if resume is None else folder_to_resume(config, resume)
    folder.remote_file.unlink(missing_ok=True)  # of a run on another machine: from now on it is one of this computer
    remember_run_folder(folder)
    return folder
