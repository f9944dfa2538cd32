"""The commands that the multi-node window shows: one per machine, the join line, the Slurm script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from modules.config import ConfigError, TrainConfig
from modules.run import LaunchPlan, RunFolder
from modules.run.join.join_token import JOIN_TOKEN
from modules.run.launch.environment import LaunchEnvironment
from modules.run.slurm.layout import SlurmRequest
from modules.run.slurm.script import plan_jobs, render


@dataclass(frozen=True)
class Command:
    """A command to copy, with its purpose."""

    title: str
    help: str
    text: str


def build_commands(config: TrainConfig, config_file: Path, token: str) -> list[Command]:
    """All ways to start this config on several machines, the simplest first.

    Queries ports and GPUs: call it off the main thread. Raises ConfigError if the config cannot run on this machine.
    """
    shared = config.model_copy(update={"enable_multi_gpu": True})
    plan = replace(LaunchPlan.from_config(shared, config_path=config_file), node_rank=0)
    first = LaunchPlan.from_config(
        shared.model_copy(update={"node_rank": 0}),
        config_path=config_file,
        extra_args=("--multi_gpu",),
    )
    # without a launcher it sets the variables itself
    first = replace(first, launcher="none", variables=LaunchEnvironment())
    found = [
        Command(
            "Machine 0, which the others join",
            f"Start this first, on the machine with the address {plan.master_addr}, or press Train in its window. "
            "Both show which machines have joined.",
            f" {JOIN_TOKEN}={token} {first.command_line()}",
        ),
        Command(
            "Every other machine",
            "Run it in Tandem's folder there. It needs no config file; the token keeps unauthorised machines out.",
            plan.join_line(plan.port + 1, token),
        ),
    ]
    for node in range(plan.num_nodes):
        title = f"Machine {node} with torchrun, manually"
        found.append(
            Command(title, "Needs the same config file at the same path on every machine.", plan.command_line(node))
        )
    return [*found, _batch_script(shared, plan)]


_SLURM = partial(
    Command, "Slurm batch script", "Save it and submit it with sbatch, or run scripts/submit_slurm.py to do both."
)


def _batch_script(config: TrainConfig, plan: LaunchPlan) -> Command:
    counts = [count or plan.processes_here for count in plan.process_counts]  # as many as here, unless it is known
    if len(set(counts)) > 1:
        return _SLURM(
            f"# not possible: {' + '.join(map(str, counts))} processes are set, and a Slurm job has as many on each\n"
            "# of its nodes. Set “Processes per machine” to one number for all, or start the machines with the\n"
            "# commands above."
        )
    request = SlurmRequest(gpus=sum(counts), nodes=len(counts), gpus_per_node=max(counts), cpu=plan.backend == "gloo")
    folder = RunFolder(Path(config.runs_dir).absolute() / (config.run_name or "slurm-run"))
    script = _or_reason(lambda: render(plan_jobs(config, request)[-1], request, folder, Path.cwd()))
    return _SLURM(script)


def _or_reason(work: Callable[[], str]) -> str:
    try:
        return work()
    except ConfigError as error:
        return f"# not possible: {error}"
