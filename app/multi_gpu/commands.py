"""The texts of the multi-node window: one command for each machine, the join line, the batch script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from app import texts
from modules.config import ConfigError, TrainConfig
from modules.run import LaunchPlan, RunFolder
from modules.run.launch_environment import LaunchEnvironment
from modules.run.slurm.layout import SlurmRequest
from modules.run.slurm.script import plan_jobs, render


@dataclass(frozen=True)
class Command:
    """Something to copy: what it is for, and the text."""

    title: str
    help: str
    text: str


def commands(config: TrainConfig, config_file: Path, token: str) -> list[Command]:
    """Everything that starts this config on several machines, the simplest way first.

    Looks at ports and GPUs: call it off the main thread. Raises ConfigError where this machine cannot do what it asks.
    """
    shared = config.model_copy(update={"enable_multi_gpu": True})
    plan = replace(LaunchPlan.from_config(shared, config_path=config_file), node_rank=0)
    first = LaunchPlan.from_config(
        shared.model_copy(update={"node_rank": 0}),
        config_path=config_file,
        extra_args=("--multi_gpu", "--token", token),
    )
    # started plainly it sets the variables itself
    first = replace(first, launcher="none", variables=LaunchEnvironment())
    found = [
        Command(texts.COMMAND_FIRST, texts.COMMAND_FIRST_HELP, first.command_line()),
        Command(texts.COMMAND_JOIN, texts.COMMAND_JOIN_HELP, plan.join_line(plan.port + 1, token)),
    ]
    for node in range(plan.num_nodes):
        title = texts.COMMAND_NODE.format(node=node)
        found.append(Command(title, texts.COMMAND_NODE_HELP, plan.command_line(node)))
    return [*found, _batch_script(shared, plan)]


def _batch_script(config: TrainConfig, plan: LaunchPlan) -> Command:
    counts = [count or 1 for count in plan.process_counts]
    request = SlurmRequest(gpus=sum(counts), nodes=len(counts), gpus_per_node=max(counts), cpu=plan.backend == "gloo")
    folder = RunFolder(Path(config.runs_dir).absolute() / (config.run_name or texts.SLURM_RUN_NAME))
    script = _or_reason(lambda: render(plan_jobs(config, request)[-1], request, folder, Path.cwd()))
    return Command(texts.COMMAND_SLURM, texts.COMMAND_SLURM_HELP, script)


def _or_reason(work: Callable[[], str]) -> str:
    try:
        return work()
    except ConfigError as error:
        return texts.COMMAND_IMPOSSIBLE.format(reason=error)
