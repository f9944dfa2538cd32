"""runs/NAME/: the only interface between the window, the command line and the training."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from modules.config import ConfigError, TrainConfig, save_config
from modules.config.run_names import run_name_problem, sanitize_run_name
from modules.files import open_regular, remove_tree, write_fault
from modules.run.folder.links import refuse_links

CONFIG_FILE_NAME: Final = "config.json"
MODEL_FOLDER_NAME: Final = "model"
SAVES_FOLDER_NAME: Final = "saves"
_MOST_WITHOUT_TRAINING: Final = 4 << 20  # bytes of events; a start that ends before its first step writes a few lines


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run; constructing it touches no disk.

    `machine` is this machine's number in the run; machines may share the disk that the folder is on.
    """

    path: Path
    machine: int = 0

    @property
    def name(self) -> str:
        """The run's name, which is the name of its folder."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The validated config of the run; a joined machine has its own, with its own paths and number."""
        return self.path / (f"machine-{self.machine}.json" if self.machine else CONFIG_FILE_NAME)

    @property
    def resume_config_file(self) -> Path:
        """The settings with which the window resumes the run; they become `config_file` when it starts."""
        return self.path / "resume.json"

    @property
    def events_file(self) -> Path:
        """The event log, one JSON object per line."""
        return self.path / "events.jsonl"

    @property
    def commands_dir(self) -> Path:
        """Command files: stop, backup, save, sample, custom_sample."""
        return self.path / "commands"

    @property
    def samples_dir(self) -> Path:
        """Sample images."""
        return self.path / "samples"

    def sample_file(self, named: str) -> Path:
        """The sample that an event names. Only its name counts: the folder may have been moved, and a log from
        elsewhere must not name other files."""
        return self.samples_dir / named.replace("\\", "/").rpartition("/")[2]

    @property
    def backup_dir(self) -> Path:
        """Backups, one folder per step."""
        return self.path / "backup"

    @property
    def received_dir(self) -> Path:
        """Another machine's backup or best weights, while they are read."""
        return self.path / "received"

    @property
    def best_dir(self) -> Path:
        """The weights of the best validation."""
        return self.path / "best"

    @property
    def model_dir(self) -> Path:
        """The trained model in its output format."""
        return self.path / MODEL_FOLDER_NAME

    @property
    def model_file(self) -> Path:
        """The trained model as a single file, with `save_single_file`."""
        return self.path / f"{self.name}.safetensors"

    @property
    def saves_dir(self) -> Path:
        """Models of earlier steps, one folder per step (`save_every`)."""
        return self.path / SAVES_FOLDER_NAME

    def saved_dir(self, step: int) -> Path:
        """The model of one step."""
        return self.saves_dir / f"step-{step:06d}"

    def saved_file(self, step: int) -> Path:
        """The model of one step as a single file, with `save_single_file`."""
        return self.saves_dir / f"{self.name}-step-{step:06d}.safetensors"

    @property
    def tensorboard_dir(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def report_file(self) -> Path:
        """The report of the run for people, written at its end."""
        return self.path / "report.html"

    @property
    def log_dir(self) -> Path:
        """Logs of all ranks and of the launcher."""
        return self.path / "log"

    @property
    def launcher_log(self) -> Path:
        """The output of torchrun and the standard error of its workers."""
        return self.log_dir / (f"launcher-{self.machine}.txt" if self.machine else "launcher.txt")

    @property
    def console_file(self) -> Path:
        """The output of a start by the window, which has no terminal."""
        return self.log_dir / "console.txt"

    @property
    def start_failure_file(self) -> Path:
        """Why a start by the window failed before it started any process, as JSON."""
        return self.log_dir / "start.error.json"

    @property
    def join_line_file(self) -> Path:
        """The line with which other machines join; readable only by this user, because it contains the token."""
        return self.log_dir / "join_line.txt"

    @property
    def join_keys_file(self) -> Path:
        """Keys of the starts on several machines, by which a joining machine recognises its folder of this run."""
        return self.path / "join_keys.json"

    @property
    def remote_file(self) -> Path:
        """Of the copy of a run on another machine: which machine that is."""
        return self.path / "remote.json"

    def log_file(self, rank: int) -> Path:
        """The log of one rank."""
        return self.log_dir / f"rank-{rank}.txt"

    def failure_file(self, rank: int) -> Path:
        """Why one rank failed, as JSON."""
        return self.log_dir / f"rank-{rank}.error.json"

    @classmethod
    def create(cls, config: TrainConfig) -> Self:
        """Create the folder of a new run.

        Raises ConfigError for an invalid or taken name, an unwritable folder, or one with links.
        """
        runs_dir = Path(config.runs_dir)
        if config.run_name is not None:
            check_run_name(config.run_name)
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            folder = cls(
                _make_unique(runs_dir, config.family) if config.run_name is None else _make(runs_dir, config.run_name)
            )
            _fill(folder, config)
        except OSError as error:
            raise not_writable_error(runs_dir, error) from error
        return folder

    @classmethod
    def for_machine(cls, config: TrainConfig, run_name: str) -> Self:
        """The folder of a joined machine, created if missing. Raises ConfigError if it is not writable or has links."""
        check_run_name(run_name)
        folder = cls(Path(config.runs_dir) / run_name, config.node_rank)
        try:
            folder.make_directories()
            save_config(config, folder.config_file)
        except OSError as error:
            raise not_writable_error(folder.path, error) from error
        return folder

    @classmethod
    def open(cls, runs_dir: str | Path, run_name: str) -> Self:
        """The folder of an existing run. Raises ConfigError if it is missing, not writable or has links."""
        check_run_name(run_name)
        folder = cls(Path(runs_dir) / run_name)
        if not folder.config_file.is_file():
            raise ConfigError(f"there is no run {run_name!r} in {runs_dir}", _existing_runs(Path(runs_dir)))
        try:
            folder.make_directories()
        except OSError as error:
            raise not_writable_error(folder.path, error) from error
        return folder

    def make_directories(self) -> None:
        """Create the folder and its subfolders if missing; raises OSError, and ConfigError if it has links."""
        refuse_links(self.path)
        for directory in (self.commands_dir, self.samples_dir, self.backup_dir, self.log_dir):
            directory.mkdir(parents=True, exist_ok=True)


def check_run_name(name: str) -> None:
    """Raise ConfigError, suggesting a valid name, unless it is letters, digits and inner ".", "_", "-"."""
    if problem := run_name_problem(name):
        raise ConfigError(f"run_name {problem}", f"Use --run_name {sanitize_run_name(name)}")


def check_run_name_free(runs_dir: Path, name: str) -> None:
    """Raise ConfigError if a run of this name has already trained, or something else has that name."""
    check_run_name(name)
    path = runs_dir / name
    try:
        is_free = not has_trained(RunFolder(path)) if path.is_dir() else not os.path.lexists(path)
    except OSError as error:
        raise not_writable_error(path, error) from error
    if not is_free:
        raise ConfigError(
            f"the run {name!r} already exists in {runs_dir}",
            f"Continue it with --resume latest --run_name {name}, or choose another --run_name",
        )


def _make(runs_dir: Path, name: str) -> Path:
    path = runs_dir / name
    try:
        path.mkdir()
    except FileExistsError:
        check_run_name_free(runs_dir, name)
    return path


def _fill(folder: RunFolder, config: TrainConfig) -> None:
    """Write what a new run begins with; if that fails, an empty folder goes, for it would keep the name taken."""
    was_empty = not any(folder.path.iterdir())
    try:
        folder.make_directories()
        save_config(config, folder.config_file)
    except (OSError, ConfigError):
        if was_empty:
            remove_tree(folder.path)
        raise


def has_trained(folder: RunFolder) -> bool:
    """Whether there is anything to lose: a start that ended before its first step leaves only logs."""
    if not folder.events_file.is_file():
        return any(folder.path.iterdir())
    with open_regular(folder.events_file) as file:
        events = file.read(_MOST_WITHOUT_TRAINING + 1)
    if len(events) > _MOST_WITHOUT_TRAINING:
        return True
    # a run that has not ended may be about to start
    return b'"type":"started"' in events or b'"type":"finished"' not in events


def _make_unique(runs_dir: Path, family: str) -> Path:
    stem = f"{sanitize_run_name(Path(family).stem)}-{time.strftime('%Y%m%d-%H%M%S')}"
    for name in (stem, *(f"{stem}-{number}" for number in range(2, 1000))):
        # mkdir decides, so that two runs started in the same second never share a folder.
        try:
            (runs_dir / name).mkdir()
        except FileExistsError:
            continue
        return runs_dir / name
    raise FileExistsError(f"a thousand runs named {stem}")


def not_writable_error(path: Path, error: OSError) -> ConfigError:
    """The error to raise if the run folder cannot be written."""
    return ConfigError(
        f"the run folder cannot be written: {error.filename or path}: {write_fault(error, path)}",
        "Set runs_dir to a writable folder on a disk with free space",
    )


def _existing_runs(runs_dir: Path) -> str:
    names = [run.name for run in newest_first(runs_dir, lambda run: run.config_file.stat().st_mtime)[:5]]
    if not names:
        return f"{runs_dir} contains no runs; check runs_dir"
    return f"The newest runs are: {', '.join(names)}"


def newest_first(runs_dir: Path, changed: Callable[[RunFolder], float | None]) -> list[RunFolder]:
    """The runs in a folder by when each has `changed`: None and OSError leave a run out, such as one that may not be
    read or has just been deleted."""
    found = list[tuple[float, Path]]()
    with suppress(OSError):
        for path in runs_dir.iterdir():
            with suppress(OSError):
                if (at := changed(RunFolder(path))) is not None:
                    found.append((at, path))
    return [RunFolder(path) for _, path in sorted(found, reverse=True)]


def run_of_model(path: Path) -> RunFolder | None:
    """The run whose model folder `path` is, or is a file in, also that of a step; None if it is of no run."""
    for folder in (path.absolute(), path.absolute().parent):
        model = folder.parent if folder.parent.name == SAVES_FOLDER_NAME else folder
        if model.name in (MODEL_FOLDER_NAME, SAVES_FOLDER_NAME) and (model.parent / CONFIG_FILE_NAME).is_file():
            return RunFolder(model.parent)
    return None
