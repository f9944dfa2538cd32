"""Tandem's engine for a model, data and a loss of one's own, from a script or a notebook."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import torch.distributed as dist
from torch import nn

from modules.config import ConfigError, ResumeError, TrainConfig, dump, save_config, validate
from modules.config.io.files import READERS, read_data
from modules.config.io.migrations import ambiguous_settings, migrate
from modules.config.io.presets import preset_data
from modules.data.batch import DataSets, MapDataset
from modules.facts import PROGRAM
from modules.library.fit_result import FitResult, load_trained, read_result
from modules.library.processes import train_here, train_in_group, train_in_processes
from modules.library.task import Loss, Metrics, Task
from modules.run import LaunchPlan, RunFolder
from modules.run.console import echo
from modules.run.folder.resume import LATEST, folder_to_resume, former_config
from modules.run.folder.run_lock import check_not_training, supervisor_lock
from modules.run.launch.environment import MULTI_PROCESS_MODES
from modules.run.launch.rank_env import launched_rank_env

log = logging.getLogger("tandem")
ConfigSource: TypeAlias = "TrainConfig | Mapping[str, object] | str | Path | None"


class Trainer:
    """Trains `model` on `train_data` with `loss`, on one device or on all of them, with everything that a run has.

    `loss(model, batch)` returns one loss for each sample [B], or their mean. It calls `model(...)` itself, never parts
    of it. `metrics(model, batch)` returns values for each sample [B], or their means, by name; they are averaged over
    all validation samples of all ranks. Data sets are map-style, as torch.utils.data.Dataset; `collate` turns a list of
    their items into a batch (default: torch's default_collate).

    `config` is a TrainConfig, a mapping of settings, the path of a YAML or JSON file, or the name of a preset; settings
    given as keywords come on top: Trainer(..., epochs=3, batch_size=64, learning_rate=1e-3). docs/settings.md lists
    them. By default every GPU of the machine trains (see `choose_placement`).

    Raises ConfigError or DataError for what cannot be trained.
    """

    def __init__(
        self,
        model: nn.Module,
        train_data: MapDataset,
        *,
        loss: Loss,
        validation_data: MapDataset | None = None,
        test_data: MapDataset | None = None,
        metrics: Metrics | None = None,
        collate: Callable[[list[object]], object] | None = None,
        config: ConfigSource = None,
        **settings: object,
    ) -> None:
        self._task = Task(model, DataSets(train_data, validation_data, test_data, collate), loss, metrics)
        self._task.check()
        self.config = trainer_config(config, settings, has_validation=validation_data is not None)
        self._folder: RunFolder | None = None

    def fit(self, resume: bool | str = False) -> FitResult:
        """Train to the end, and load the trained weights into the model.

        `resume`: True or "latest" continues this trainer's run, or that named `run_name`, or the newest one, exactly
        where it stopped; the path of a backup continues there. The first Ctrl-C ends the run after a backup, which is
        no error: the result says so.

        In a script that trains on several devices, call it below `if __name__ == "__main__":`. Under torchrun or srun
        this process becomes one of their group; call it equally often in every process.
        Raises a TandemError that says why the run failed, and on which rank.
        """
        _check_caller()
        if (rank_env := launched_rank_env(os.environ, self.config.initial_port)) is not None:
            folder = train_in_group(self._task, self.config, rank_env, self._resumed(resume))
        else:
            folder = self._start(self._resumed(resume))
        result = read_result(folder)
        load_trained(self._task.model, result)
        return result

    def _resumed(self, resume: bool | str) -> str | None:
        """As `--resume` takes it."""
        if isinstance(resume, str):
            return resume
        return LATEST if resume else None

    def _start(self, resume: str | None) -> RunFolder:
        config, plan = self._planned()
        if resume is None:
            folder = RunFolder.create(config)
        elif resume == LATEST and self._folder is not None:
            folder = self._folder
            check_not_training(folder)
        else:
            folder = folder_to_resume(config, resume)
        self._folder = folder
        echo(f"Run folder: {folder.path}")
        with supervisor_lock(folder):
            previous = former_config(folder)
            save_config(config, folder.config_file)
            train = train_in_processes if plan.mode in MULTI_PROCESS_MODES else train_here
            try:
                train(self._task, config, folder, plan, resume)
            except (ConfigError, ResumeError):
                folder.config_file.write_bytes(previous)
                raise
        return folder

    def _planned(self) -> tuple[TrainConfig, LaunchPlan]:
        """The config and plan of a start from here; with one device if nothing else is asked for and possible."""
        config = self.config
        if config.num_nodes > 1:
            raise ConfigError(
                f"num_nodes is {config.num_nodes}, and a program starts processes on its own machine only",
                "Start the program with torchrun or srun on each machine",
            )
        plan = LaunchPlan.from_config(config, config_path="config.json")
        is_asked_for = config.training_mode != "auto" or config.world_size is not None or config.processes_per_node
        if plan.mode in MULTI_PROCESS_MODES:
            try:
                self._task.check_sendable()
            except ConfigError as error:
                if is_asked_for:
                    raise
                echo(f"Note: one device trains. {error}")
                config = config.model_copy(update={"training_mode": "single"})
                plan = LaunchPlan.from_config(config, config_path="config.json")
        for reason in plan.reasons if is_asked_for or plan.mode != "single" else ():
            echo(f"Note: {reason}.")
        return self._without_unsendable_workers(config, plan), plan

    def _without_unsendable_workers(self, config: TrainConfig, plan: LaunchPlan) -> TrainConfig:
        """Where loader processes import what they need, data that they cannot import is read in this process."""
        if (
            plan.mode in MULTI_PROCESS_MODES
            or not config.loader_workers
            or multiprocessing.get_start_method() == "fork"
        ):
            return config
        try:
            self._task.check_sendable()
        except ConfigError:
            echo("Note: loader_workers is 0, because new processes cannot import the data or the loss.")
            return config.model_copy(update={"loader_workers": 0})
        return config


def _check_caller() -> None:
    """Raise ConfigError if a run cannot be started from here."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "a process that was just started, and imports this program, comes to fit() as well",
            'Put the call below `if __name__ == "__main__":`',
        )
    if dist.is_initialized():
        raise ConfigError(
            "fit() forms a process group of its own, and this process is in one already",
            "Call it outside of launch_distributed and setup_distributed; under torchrun it joins the group by itself",
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("fit() handles Ctrl-C, which Python allows in the main thread only", "Call it there")


def trainer_config(source: ConfigSource, overrides: Mapping[str, object], *, has_validation: bool) -> TrainConfig:
    """The config of a run of a program's own model. Raises ConfigError that lists every fault.

    What is not given has the default of docs/settings.md, except that all devices train (`enable_multi_gpu`),
    that validation data is used once an epoch, and that what is trained in fp64 is saved in fp64.
    """
    given = {**_settings(source), **overrides}
    defaults: dict[str, object] = {"enable_multi_gpu": given.get("training_mode") != "single"}
    if has_validation or given.get("validation_split"):
        defaults["validate_every"] = "1 epoch"
    if given.get("precision") == "fp64":
        defaults["save_dtype"] = "fp64"  # the saved weights are loaded into the program's model
    return validate({**defaults, **given, "family": PROGRAM}, "Trainer")


def _settings(source: ConfigSource) -> dict[str, object]:
    """Those that were given, without defaults."""
    if source is None:
        return {}
    if isinstance(source, TrainConfig):
        return {name: value for name, value in dump(source).items() if name in source.model_fields_set}
    if isinstance(source, Mapping):
        for sentence in ambiguous_settings(source, "Trainer"):
            log.warning(sentence)
        return migrate(dict(source), "Trainer") if "version" in source else dict(source)
    if isinstance(source, str | Path):
        is_file = Path(source).suffix.lower() in READERS
        return dict(read_data(source) if is_file else preset_data(str(source)))
    raise ConfigError(
        f"Trainer: config is {type(source).__name__}; give a TrainConfig, a mapping of settings, the path of a YAML or "
        "JSON file, or settings as keywords, such as epochs=3"
    )
