"""Describes a launch plan as text, for `--dry_run`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from modules.config import TrainConfig, effective_batch
from modules.files import whole_path
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.plan import LaunchPlan


def preview(
    config: TrainConfig, plan: LaunchPlan, hosts: Sequence[object] = (), *, has_command: bool = True
) -> list[str]:
    """The lines that show a plan: notes, processes, variables, and a command for each machine.

    `hosts` are those that machine 0 starts over ssh: if it starts all others, no command is needed. Without
    `has_command` none is shown, such as to somebody at another computer.
    """
    lines = [f"Note: {reason}." for reason in plan.reasons]
    lines.append(
        f"Would train {config.family} in {_processes(plan)}, {config.precision}, {_batch(config, plan)}, "
        "with these variables:"
    )
    variables = plan.variables.portable if plan.is_elsewhere else plan.environment()
    lines += [f"  {name}={value}" for name, value in variables.items()]
    lines += [f"  (as you set it) {name}={value}" for name, value in plan.variables.user_set.items()]
    if not has_command:
        return lines
    if plan.num_nodes == 1:
        return [*lines, "With this command, which sets them:", f"  {plan.command_line()}"]
    started = f"starts {' and '.join(map(str, hosts))} over ssh"
    if plan.num_nodes == 1 + len(hosts):
        return [*lines, f"Without --dry_run, this machine {started}, so no other command is needed."]
    also = f"{started} and " if hosts else ""
    lines.append(f"One command for each machine, to be run in {os.getcwd()}:")
    for node in range(plan.num_nodes):
        lines += ["", f"Machine {node}:", f"  {plan.command_line(node)}"]
    return [
        *lines,
        "",
        f"Before, on every machine: export {STORE_SECRET} with the output of one `openssl rand -hex 16`, so that the "
        "processes believe only each other.",
        "",
        f"Or start only machine 0, with the same command but without --dry_run: it {also}shows a line with which the "
        "others join without a config file, and checks that all have the same code, versions and images.",
    ]


def absolute_config_path(source: str) -> str:
    """The absolute path of a config file, so that it works from any folder; a preset's name unchanged."""
    return str(whole_path(source)) if os.path.isfile(source) else source


def to_arguments(flags: dict[str, object]) -> list[str]:
    """The command-line arguments for `flags`: {"set": ["a=1"], "multi_gpu": True} is --set a=1 --multi_gpu."""
    arguments: list[str] = []
    for name, value in flags.items():
        if isinstance(value, list):
            arguments += [word for item in value for word in (f"--{name}", str(item))]
        elif value is True:
            arguments.append(f"--{name}")
        elif value not in {None, False}:
            arguments += [f"--{name}", str(value)]
    return arguments


def _processes(plan: LaunchPlan) -> str:
    if plan.world_size == 1:
        return "one process"
    counts = " + ".join("?" if count is None else str(count) for count in plan.process_counts)
    where = f" on {plan.num_nodes} machines ({counts})" if plan.num_nodes > 1 else ""
    return f"{'several' if plan.world_size is None else plan.world_size} processes{where} ({plan.backend})"


def _batch(config: TrainConfig, plan: LaunchPlan) -> str:
    if plan.world_size is None and not config.global_batch_size:
        return f"effective batch {effective_batch(config, 1)} for each process"
    return f"effective batch {effective_batch(config, plan.world_size or 1)}"
