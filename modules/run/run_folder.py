"""runs/NAME/: the only meeting point of window, command line and training."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from modules.config import ConfigError, TrainConfig, save_config

CONFIG_FILE_NAME: Final = "config.json"
_LONGEST_NAME_BYTES = 200
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run; making one touches no disk.

    `machine` is the number of the machine whose supervisor asks: the folder may be on a disk that they share.
    """

    path: Path
    machine: int = 0

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The validated config of the run; a joined machine's has its own folders and number."""
        return self.path / (f"machine-{self.machine}.json" if self.machine else CONFIG_FILE_NAME)

    @property
    def events_file(self) -> Path:
        """What happened, one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def commands_dir(self) -> Path:
        """Files that ask for a stop, backup, save or sample."""
        return self.path / "commands"

    @property
    def samples_dir(self) -> Path:
        """Sample pictures."""
        return self.path / "samples"

    @property
    def backup_dir(self) -> Path:
        """Backups, one folder a step."""
        return self.path / "backup"

    @property
    def model_dir(self) -> Path:
        """The trained model in its output format."""
        return self.path / "model"

    @property
    def tensorboard_dir(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def log_dir(self) -> Path:
        """Logs of every rank and of the launcher."""
        return self.path / "log"

    @property
    def launcher_log(self) -> Path:
        """What torchrun, and the workers' standard error, had to say."""
        return self.log_dir / (f"launcher-{self.machine}.txt" if self.machine else "launcher.txt")

    def log_file(self, rank: int) -> Path:
        """The log of one rank."""
        return self.log_dir / f"rank-{rank}.txt"

    def failure_file(self, rank: int) -> Path:
        """Why one rank failed, as JSON."""
        return self.log_dir / f"rank-{rank}.error.json"

    @classmethod
    def create(cls, config: TrainConfig) -> Self:
        """Make the folder of a new run; ConfigError for a bad or taken name or a folder not writable."""
        runs_dir = Path(config.runs_dir)
        if config.run_name is not None:
            check_run_name(config.run_name)
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            folder = cls(
                _make_unique(runs_dir, config.family) if config.run_name is None else _make(runs_dir, config.run_name)
            )
            for directory in (folder.commands_dir, folder.samples_dir, folder.backup_dir, folder.log_dir):
                directory.mkdir(exist_ok=True)
            save_config(config, folder.config_file)
        except OSError as error:
            raise not_writable(runs_dir, error) from error
        return folder

    @classmethod
    def of_machine(cls, config: TrainConfig, run_name: str) -> Self:
        """The folder of a joined machine, made where it is not there. Raises ConfigError for a folder not writable."""
        check_run_name(run_name)
        folder = cls(Path(config.runs_dir) / run_name, config.node_rank)
        try:
            for directory in (folder.commands_dir, folder.samples_dir, folder.backup_dir, folder.log_dir):
                directory.mkdir(parents=True, exist_ok=True)
            save_config(config, folder.config_file)
        except OSError as error:
            raise not_writable(folder.path, error) from error
        return folder

    @classmethod
    def open(cls, runs_dir: str | Path, run_name: str) -> Self:
        """The folder of an existing run; raises ConfigError naming the newest runs if there is none."""
        check_run_name(run_name)
        folder = cls(Path(runs_dir) / run_name)
        if not folder.config_file.is_file():
            raise ConfigError(f"there is no run {run_name!r} in {runs_dir}", _existing_runs(Path(runs_dir)))
        try:
            for directory in (folder.commands_dir, folder.samples_dir, folder.backup_dir, folder.log_dir):
                directory.mkdir(exist_ok=True)
        except OSError as error:
            raise not_writable(folder.path, error) from error
        return folder


def check_run_name(name: str) -> None:
    """Raise ConfigError, with a clean name, unless it is letters, digits and inner ".", "_", "-"."""
    if name == clean_run_name(name):
        return
    raise ConfigError(
        f"run_name is {name!r}; a run name has only letters, digits, '.', '_' and '-', and begins and ends "
        "with a letter or digit",
        f"Use --run_name {clean_run_name(name)}",
    )


def check_free(runs_dir: Path, name: str) -> None:
    """Raise ConfigError where a run of this name has trained already, or something else has that name."""
    check_run_name(name)
    path = runs_dir / name
    try:
        is_free = not _has_trained(RunFolder(path)) if path.is_dir() else not os.path.lexists(path)
    except OSError as error:
        raise not_writable(path, error) from error
    if not is_free:
        raise ConfigError(
            f"the run {name!r} already exists in {runs_dir}",
            f"Continue it with --resume latest --run_name {name}, or choose another --run_name",
        )


def clean_run_name(name: str) -> str:
    """The nearest allowed run name; an allowed one comes back unchanged."""
    clean = re.sub(r"[^\w.-]+", "_", name).strip("._-")
    while len(clean.encode()) > _LONGEST_NAME_BYTES:
        clean = clean[:-1].rstrip("._-")
    return f"run-{clean}".rstrip("-") if not clean or _RESERVED.fullmatch(clean) else clean


def _make(runs_dir: Path, name: str) -> Path:
    path = runs_dir / name
    try:
        path.mkdir()
    except FileExistsError:
        check_free(runs_dir, name)
    return path


def _has_trained(folder: RunFolder) -> bool:
    """Whether there is anything to lose: a start that ended before its first step leaves nothing but words."""
    if not folder.events_file.is_file():
        return any(folder.path.iterdir())
    events = folder.events_file.read_bytes()
    # one that has not ended may still be about to begin
    return b'"type":"started"' in events or b'"type":"finished"' not in events


def _make_unique(runs_dir: Path, family: str) -> Path:
    stem = f"{clean_run_name(Path(family).stem)}-{time.strftime('%Y%m%d-%H%M%S')}"
    for name in (stem, *(f"{stem}-{number}" for number in range(2, 1000))):
        # mkdir is what decides, so that two runs started in the same second never share a folder.
        try:
            (runs_dir / name).mkdir()
        except FileExistsError:
            continue
        return runs_dir / name
    raise FileExistsError(f"a thousand runs named {stem}")


def not_writable(path: Path, error: OSError) -> ConfigError:
    """What to tell the user when the system refuses to write in the run folder."""
    return ConfigError(
        f"the run folder cannot be written: {error.filename or path}: {error.strerror or error}",
        "Set runs_dir to a folder you may write to and whose disk has room",
    )


def _existing_runs(runs_dir: Path) -> str:
    try:
        found = runs_dir.glob(f"*/{CONFIG_FILE_NAME}")
        configs = sorted(found, key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        configs = []
    names = [file.parent.name for file in configs[:5]]
    if not names:
        return f"{runs_dir} holds no runs; check runs_dir"
    return f"The newest runs there are: {', '.join(names)}"
