"""Tandem's engine for a model, data and a loss of one's own, from a script or a notebook."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from modules.config import ConfigError, ResumeError, TrainConfig, dump, save_config, validate
from modules.config.io.files import READERS, read_data
from modules.config.io.migrations import ambiguous_settings, migrate
from modules.config.io.presets import preset_data
from modules.data.batch import DataSets, MapDataset
from modules.facts import PROGRAM
from modules.library.fit_result import FitResult, load_trained, read_result
from modules.library.processes import NoGroup, train_here, train_in_group, train_in_processes
from modules.library.task import BuildOptimizer, BuildScheduler, Loss, Metrics, Task
from modules.run import LaunchPlan, RunFolder
from modules.run.batch_size.records import SearchRequest, SearchResult
from modules.run.batch_size.start import search
from modules.run.console import echo
from modules.run.folder.commands import STOP_INTERRUPTED, clear_commands, request_command
from modules.run.folder.resume import LATEST, folder_to_resume, former_config
from modules.run.folder.run_lock import check_not_training, supervisor_lock
from modules.run.launch.environment import MULTI_PROCESS_MODES
from modules.run.launch.rank_env import launched_rank_env
from modules.run.remote.run_copy import mark_copy, read_copy
from modules.run.start import ALONE, on_one_device

log = logging.getLogger("tandem")
_MEANT = {  # the Trainer's arguments, as other libraries name them
    **dict.fromkeys(
        ("dataset", "train_dataset", "training_data", "train_loader", "train_dataloader", "train_dataloaders"),
        "train_data",
    ),
    **dict.fromkeys(
        (
            *("eval_data", "eval_dataset", "val_data", "val_dataset", "valid_data", "validation_dataset"),
            *("eval_loader", "val_loader", "val_dataloader", "val_dataloaders", "valid_loader", "validation_loader"),
        ),
        "validation_data",
    ),
    **dict.fromkeys(("test_dataset", "test_loader", "test_dataloader", "test_dataloaders"), "test_data"),
    **dict.fromkeys(("criterion", "loss_fn", "loss_function"), "loss"),
    **dict.fromkeys(("compute_metrics", "eval_metrics"), "metrics"),
    "optimizer_fn": "optimizer",
    **dict.fromkeys(("lr_scheduler", "scheduler_fn"), "scheduler"),
    **dict.fromkeys(("collate_fn", "data_collator"), "collate"),
}
ConfigSource: TypeAlias = "TrainConfig | Mapping[str, object] | str | Path | None"


class Trainer:
    """Trains `model` on `train_data` with `loss`, on one device or on all of them, with everything that a run has.

    `loss(model, batch)` returns one loss for each sample [B], or their mean. It calls `model(...)` itself, never parts
    of it. `metrics(model, batch)` returns values for each sample [B], or their means, by name; they are averaged over
    all validation samples of all ranks. Data sets are map-style, as torch.utils.data.Dataset; `collate` turns a list of
    their items into a batch (default: torch's default_collate). `optimizer` is the setting, or is called with torch's
    parameter groups and the learning rate: torch.optim.Adagrad, or a function of yours. `scheduler` is the setting, or
    is called with an optimizer: partial(StepLR, step_size=1000); its steps are those of the optimizer.

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
        optimizer: BuildOptimizer | Mapping[str, object] | str | None = None,
        scheduler: BuildScheduler | Mapping[str, object] | str | None = None,
        config: ConfigSource = None,
        **settings: object,
    ) -> None:
        for name, made in (("optimizer", optimizer), ("scheduler", scheduler)):
            if isinstance(made, Optimizer | LRScheduler):
                raise ConfigError(
                    f"{name} is a {type(made).__name__} that exists already; each process makes its own",
                    f"Give the class with its arguments: functools.partial({type(made).__name__}, ...)",
                )
        build_optimizer = optimizer if callable(optimizer) else None
        if optimizer is not None:
            settings["optimizer"] = "custom" if build_optimizer else optimizer
        build_scheduler = scheduler if callable(scheduler) else None
        if scheduler is not None:
            settings["scheduler"] = "custom" if build_scheduler else scheduler
        data = DataSets(train_data, validation_data, test_data, collate)
        self._task = Task(model, data, loss, metrics, build_optimizer, build_scheduler)
        self._task.check()
        self.config = trainer_config(config, settings, has_validation=validation_data is not None)
        self._folder: RunFolder | None = None
        self._fitting: RunFolder | None = None  # as long as `fit` is at work in it

    def fit(self, resume: bool | str = False, *, require_multi_gpu: bool = False) -> FitResult:
        """Train to the end, and load the trained weights into the model.

        `resume`: True or "latest" continues this trainer's run, or that named `run_name`, or the newest one, exactly
        where it stopped; the path of a backup continues there. The first Ctrl-C ends the run after a backup, which is
        no error: the result says so. It reaches the main thread only; in another thread, `stop` does the same.

        If the processes cannot form a group, one device trains instead, unless `require_multi_gpu`. In a script that
        trains on several devices, call it below `if __name__ == "__main__":`. Under torchrun or srun this process
        becomes one of their group; call it equally often in every process.
        Raises a TandemError that says why the run failed, and on which rank.
        """
        _check_caller()
        try:
            if (rank_env := launched_rank_env(os.environ, self.config.initial_port)) is not None:
                folder = train_in_group(self._task, self.config, rank_env, self._resumed(resume), self._started)
            else:
                folder = self._start(self._resumed(resume), require_multi_gpu=require_multi_gpu)
        finally:
            self._fitting = None
        result = read_result(folder)
        load_trained(self._task.model, result)
        return result

    def stop(self) -> None:
        """End the `fit` that runs in another thread, after a backup; without one, nothing happens."""
        if self._fitting is not None:
            request_command(self._fitting, "stop", STOP_INTERRUPTED)

    def find_batch_size(self, memory_target: float = 0.9, memory_limit_gb: float | None = None) -> SearchResult:
        """The largest `batch_size` that fits on each device that would train; nothing is trained.

        It may take the share `memory_target` of a device's memory, or `memory_limit_gb` GiB.
        Raises ConfigError for what cannot be searched, TandemError if not even one sample fits.
        """
        _check_caller()
        config, plan = self._planned()
        train = train_in_processes if plan.mode in MULTI_PROCESS_MODES else train_here

        def start(searched: TrainConfig, folder: RunFolder) -> None:
            train(self._task, searched, folder, plan, None)

        return search(config, SearchRequest(memory_target, memory_limit_gb), start)

    def _resumed(self, resume: bool | str) -> str | None:
        """As `--resume` takes it."""
        if isinstance(resume, str):
            return resume
        return LATEST if resume else None

    def _start(self, resume: str | None, *, require_multi_gpu: bool) -> RunFolder:
        config, plan = self._planned(require_multi_gpu=require_multi_gpu)
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
            clear_commands(folder)
            self._started(folder)
            previous, copy = former_config(folder), read_copy(folder)
            save_config(config, folder.config_file)
            folder.remote_file.unlink(missing_ok=True)  # from now on it is a run of this computer
            train = train_in_processes if plan.mode in MULTI_PROCESS_MODES else train_here
            try:
                train(self._task, config, folder, plan, resume)
            except NoGroup as error:
                if require_multi_gpu:
                    raise
                echo(f"{error}\n{ALONE}")
                config = on_one_device(config)
                plan = LaunchPlan.from_config(config, config_path="config.json")
                train_here(self._task, config, folder, plan, resume)
            except (ConfigError, ResumeError):
                folder.config_file.write_bytes(previous)
                if copy is not None:
                    mark_copy(folder, copy)
                raise
        return folder

    def _started(self, folder: RunFolder) -> None:
        """From now on `stop` reaches the run."""
        self._fitting = folder

    def _planned(self, *, require_multi_gpu: bool = False) -> tuple[TrainConfig, LaunchPlan]:
        """The config and plan of a start from here; with one device if nothing else is asked for and possible."""
        config = self.config
        if config.num_nodes > 1:
            raise ConfigError(
                f"num_nodes is {config.num_nodes}, and a program starts processes on its own machine only",
                "Start the program with torchrun or srun on each machine",
            )
        plan = LaunchPlan.from_config(config, config_path="config.json", require_multi_gpu=require_multi_gpu)
        is_asked_for = (
            require_multi_gpu
            or config.training_mode != "auto"
            or config.world_size is not None
            or config.processes_per_node
        )
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
            or not (config.loader_workers or config.validation_workers)
            or multiprocessing.get_start_method() == "fork"
        ):
            return config
        try:
            self._task.check_sendable()
        except ConfigError:
            echo("Note: loader_workers is 0, because new processes cannot import the data or the loss.")
            return config.model_copy(update={"loader_workers": 0, "validation_workers": None})
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


def trainer_config(source: ConfigSource, overrides: Mapping[str, object], *, has_validation: bool) -> TrainConfig:
    """The config of a run of a program's own model. Raises ConfigError that lists every fault.

    What is not given has the default of docs/settings.md, except that all devices train (`enable_multi_gpu`),
    that validation data is used once an epoch, and that what is trained in fp64 is saved in fp64.
    """
    for name in overrides:
        if (meant := _MEANT.get(name)) is not None:
            raise ConfigError(f"Trainer: {name} is no argument and no setting; did you mean {meant}?")
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
