"""The commands that the multi-node window shows: one per machine, the join line, the Slurm job."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from app.form.setting_text import setting_title
from modules import ROOT
from modules.config import TrainConfig
from modules.machine import port_is_free, preferred_addresses, visible_gpus
from modules.run import LaunchPlan
from modules.run.join.allowed_paths import allowing, asked_about
from modules.run.join.join_token import JOIN_TOKEN
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.environment import LaunchEnvironment

SUBMIT_SCRIPT = ROOT / "scripts" / "submit_slurm.py"
_SLURM_OPTIONS: Final = (
    ("--gpus 8", "GPUs of all nodes together; correct the number if it is that of this computer"),
    ("--cpu", "train on the processors of the nodes, without GPUs"),
    ("--partition NAME --account NAME", "where the job runs, and who pays, if your cluster asks for them"),
    ("--time 1-0 --mem 64G --gpu_type NAME", "limits and the kind of GPU: here a day and 64 GB of each node"),
    ("--dry_run", "only show the script"),
)


@dataclass(frozen=True)
class Command:
    """A command to copy, with its purpose."""

    title: str
    help: str
    text: str
    options: tuple[tuple[str, str], ...] = ()  # that may be corrected or added, and what for


def build_commands(
    config: TrainConfig, config_file: Path, token: str, is_free: Callable[[int], bool] = port_is_free
) -> list[Command]:
    """All ways to start this config, the simplest first; on one machine only the Slurm job.

    Queries GPUs, and ports by `is_free`: call it off the main thread. Raises ConfigError if the config cannot run on
    this machine.
    """
    if config.num_nodes == 1:
        return [_slurm_job(config, config_file)]
    shared = config.model_copy(update={"enable_multi_gpu": True})
    plan = LaunchPlan.from_config(shared, config_path=config_file, is_free=is_free)
    first = LaunchPlan.from_config(
        shared.model_copy(update={"node_rank": 0}),
        config_path=config_file,
        extra_args=("--multi_gpu",),
        is_free=is_free,
    )
    elsewhere = (
        f"This computer does not have that address ({', '.join(preferred_addresses())}): run it on the one that has. "
    )
    # without a launcher it sets the variables itself
    first = replace(first, launcher="none", variables=LaunchEnvironment())
    found = [
        Command(
            "Machine 0, which the others join",
            f"Start this first, on the machine with the address {plan.master_addr}, or press Train in its window. "
            f"{elsewhere if first.is_elsewhere else ''}Both show which machines have joined.",
            f" {_start_folder()} && {JOIN_TOKEN}={token} {first.command_line()}",
        ),
        Command(
            "Every other machine",
            "Run it in Tandem's folder there. It needs no config file; the token keeps unauthorised machines out.",
            join_line := plan.join_line(plan.port + 1, token),
        ),
        *without_questions(join_line, asked_about(shared)),
    ]
    secret = secrets.token_hex(16)
    for node in range(plan.num_nodes):
        found.append(
            Command(
                f"Machine {node} with torchrun, manually",
                "Every machine needs Tandem, its Python and the config file at the same paths, and this start folder, "
                f"where relative paths in the config begin. {STORE_SECRET}, the same on all, authenticates what the "
                "processes tell each other; it is new each time that the commands are generated.",
                f" {_start_folder()} && {STORE_SECRET}={secret} {plan.command_line(node)}",
            )
        )
    return [*found, _slurm_job(shared, config_file)]


def without_questions(line: str, asked: Mapping[str, str]) -> list[Command]:
    """The join line that allows what the other machine would ask about, `asked_about` the settings; none if nothing."""
    if not asked:
        return []
    return [
        Command(
            "The same without questions there",
            "The other machine needs these files, and uses none before somebody has allowed it, which it asks in its "
            "terminal. This line allows them.",
            allowing(line, asked),
            (
                *((f"--allow {path}", f"{setting_title(name)} ({name})") for path, name in asked.items()),
                ("--set NAME=PATH", "in place of it, for one that is at another path there"),
            ),
        )
    ]


def _slurm_job(config: TrainConfig, config_file: Path) -> Command:
    """The line that writes the run's folder with the batch script in it, and submits it."""
    counts = _processes_of_nodes(config)
    title = "Slurm job"
    if len(set(counts)) > 1:
        return Command(
            title,
            "Not possible with these settings:",
            f"# {' + '.join(map(str, counts))} processes are set, and a Slurm job has as many on each of its nodes.\n"
            "# Set “Processes per machine” to one number for all, or start the machines with the commands above.",
        )
    alone = "“Number of machines” is 1, so this is the only line; Train needs none. " if len(counts) == 1 else ""
    command = [sys.executable, str(SUBMIT_SCRIPT), "--config", str(config_file)]
    command += ["--gpus", str(sum(counts)), "--nodes", str(len(counts))]
    if config.device == "cpu":
        command.append("--cpu")
    return Command(
        title,
        f"{alone}Run it on a login node of the cluster, which sees this folder and the config file: it checks the "
        "settings, writes the run's folder with slurm.sh in it, and submits that with sbatch.",
        f"{_start_folder()} && {shlex.join(command)}",
        _SLURM_OPTIONS,
    )


def _processes_of_nodes(config: TrainConfig) -> list[int]:
    """The processes on each node: as set, or else as many as this computer has GPUs."""
    nodes = config.num_nodes
    is_group = config.training_mode in {"distributed", "fully_sharded"}
    if not (is_group or (config.training_mode == "auto" and config.enable_multi_gpu)):
        return [1]
    if config.processes_per_node is not None:
        given = list(config.processes_per_node)
        return given if len(given) == nodes else given * nodes
    if config.world_size is not None:
        return [config.world_size // nodes] * nodes
    here = 1 if config.device == "cpu" else len(visible_gpus())
    return [max(here, 1)] * nodes


def _start_folder() -> str:
    """Goes to where relative paths in the config begin."""
    return f"cd {shlex.quote(str(Path.cwd()))}"
