"""Renders Slurm batch scripts: one that trains, and optionally one before it that fills the cache.

A script runs `scripts/train.py` with srun, one task per GPU. Every start resumes the run's newest backup, so the first
start, a requeued one and a manual one are the same command.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modules.config import ConfigError, TrainConfig
from modules.files import control_character
from modules.run.cluster.job import config_of_job, pluralize
from modules.run.exit_codes import PAUSED, TERMINATED
from modules.run.folder.run_folder import RunFolder
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.plan import TRAIN_SCRIPT
from modules.run.launch.slurm_environment import base_port
from modules.run.slurm.layout import SlurmLayout, SlurmRequest, plan_layout

SCRIPT_NAME: Final = "slurm.sh"
LOG_NAME: Final = "slurm-%j.txt"  # %j is the job ID
# By then the ranks that outlive a failed one have recorded what they know.
_WAIT_S: Final = 30
_LOG_HEADER: Final = (
    'echo "$(date "+%F %T"): job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), on $SLURM_JOB_NODELIST"'
)


@dataclass(frozen=True)
class SlurmJob:
    """One job: its config, its layout, and its purpose."""

    config: TrainConfig
    layout: SlurmLayout
    purpose: str  # "training" or "caching"


def plan_jobs(config: TrainConfig, request: SlurmRequest) -> list[SlurmJob]:
    """The training job, preceded by a caching job if that is to have its own GPUs.

    Raises ConfigError if the request and the config do not match.
    """
    request.check()
    layout = plan_layout(request, request.gpus, nodes=request.nodes)
    if config.cache_only:
        return [SlurmJob(_config_of_job(config, request, layout), layout, "caching")]
    training = SlurmJob(_config_of_job(config, request, layout), layout, "training")
    if request.cache_gpus is None:
        return [training]
    cache_layout = plan_layout(request, request.cache_gpus, "--cache_gpus", nodes=_cache_nodes(request, layout))
    cache_config = config.model_copy(update={"cache_only": True})
    return [SlurmJob(_config_of_job(cache_config, request, cache_layout), cache_layout, "caching"), training]


def _cache_nodes(request: SlurmRequest, layout: SlurmLayout) -> int | None:
    """The nodes that cache: of those that train no more than are needed; for more GPUs than train, as few as can be."""
    if request.cache_gpus is None or request.cache_gpus > layout.processes:
        return request.nodes
    return -(-request.cache_gpus // layout.per_node)


def _config_of_job(config: TrainConfig, request: SlurmRequest, layout: SlurmLayout) -> TrainConfig:
    return config_of_job(
        config,
        processes=layout.processes,
        nodes=layout.nodes,
        cpu=request.cpu,
        loss=(
            f"Slurm ends a job that loses one of its {layout.nodes} nodes",
            "a requeued job goes on from the newest backup",
        ),
    )


def render(
    job: SlurmJob, request: SlurmRequest, folder: RunFolder, directory: Path, *, python: str = sys.executable
) -> str:
    """The batch script of a job whose run is in `folder`; relative paths in its config start at `directory`."""
    return "\n".join(
        [
            "#!/bin/bash",
            *_heading(job, request, folder),
            "",
            *_directives(job, request, folder),
            "",
            "# Signals are for the training; this script only waits until it ends.",
            "trap : USR1 TERM",
            "",
            "# Relative paths in the config start here.",
            f"cd {_quoted(directory.resolve())} || exit 2",
            *request.setup_lines,
            "",
            *_environment(job, request),
            "",
            *_srun_command(job, request, folder, python),
            "",
            *_exit_handling(request, folder),
            "",
        ]
    )


def script_path(folder: RunFolder) -> Path:
    """The path of a run's batch script."""
    return folder.path.resolve() / SCRIPT_NAME


def log_path(folder: RunFolder, job_id: str = "%j") -> Path:
    """The path of a job's log."""
    return folder.log_dir.resolve() / LOG_NAME.replace("%j", job_id)


def _heading(job: SlurmJob, request: SlurmRequest, folder: RunFolder) -> list[str]:
    layout = job.layout
    nodes = "one node" if layout.nodes == 1 else f"{layout.nodes} nodes"
    verb = "Trains" if job.purpose == "training" else "Caches the images of"
    has_gpu = "" if request.cpu else f" {'Each' if layout.processes > 1 else 'It'} has a GPU."
    return [
        f"# {verb} the run {folder.name} with {pluralize(layout.processes, 'process')} on {nodes}.{has_gpu}",
        "# Written by scripts/submit_slurm.py. Submit it again to continue the run from its newest backup:",
        f"#   sbatch {_quoted(script_path(folder))}",
    ]


def _directives(job: SlurmJob, request: SlurmRequest, folder: RunFolder) -> list[str]:
    layout = job.layout
    lines = [_directive("job-name", folder.name), _directive("nodes", layout.nodes)]
    if layout.nodelist is not None:
        lines.append(_directive("nodelist", layout.nodelist))
    lines += [
        f"# A task is one process{'' if request.cpu else ' with one GPU'}; its cores are for it and its loader "
        "workers.",
        _directive("ntasks-per-node", layout.per_node),
        _directive("cpus-per-task", _cores(job, request)),
    ]
    if not request.cpu:
        lines.append(_directive("gres", _gres(layout, request)))
    if layout.exclusive:
        lines += ["# No other jobs on the node.", "#SBATCH --exclusive"]
        if request.mem is None:
            lines += ["# All of its memory.", _directive("mem", 0)]
    for name in ("mem", "partition", "time", "account", "qos", "constraint"):
        if (value := getattr(request, name)) is not None:
            lines.append(_directive(name, value))
    if request.requeue:
        lines.append("# The job is requeued after a preemption or a node failure.")
    lines += [
        _directive("requeue" if request.requeue else "no-requeue"),
        f"# {request.warn_s} s before the time limit every task gets SIGUSR1: Tandem makes a backup and exits.",
        _directive("signal", f"USR1@{request.warn_s}"),
        "# The log; every start of the job appends to the same file.",
        _directive("output", f"{str(folder.log_dir.resolve()).replace('%', '%%')}/{LOG_NAME}"),
        _directive("open-mode", "append"),
        *(f"#SBATCH {_one_line(line.removeprefix('#SBATCH').strip())}" for line in request.sbatch_lines),
    ]
    return lines


def _environment(job: SlurmJob, request: SlurmRequest) -> list[str]:
    lines = ["# Variables that you set yourself are kept. Output is unbuffered, and a crash prints its stack."]
    lines.append("export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1")
    if not request.cpu:
        lines += ["# GPUs are numbered as Slurm and nvidia-smi number them.", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    lines += ["# One thread per core of the task.", _default("OMP_NUM_THREADS", "$SLURM_CPUS_PER_TASK")]
    if job.layout.processes > 1:
        first = "127.0.0.1"
        if job.layout.nodes > 1:
            first = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        lines += [
            "# Where rank 0 listens. The port depends on the job ID, so that jobs on the same node do not collide.",
            _default("MASTER_ADDR", first),
            _default("MASTER_PORT", f"$(({base_port(job.config.initial_port)} + SLURM_JOB_ID % 1000))"),
            "# What the ranks authenticate each other with: new in each start, whatever sbatch has handed on.",
            f"export {STORE_SECRET}=\"$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')\"",
            f': "${{{STORE_SECRET}:?is empty: od or tr is missing on this node}}"',
        ]
        if job.layout.nodes == 1:
            lines += [
                "# One node needs no network.",
                *(
                    _default(name, value)
                    for name, value in (("GLOO_SOCKET_IFNAME", "lo"), ("NCCL_SOCKET_IFNAME", "=lo"))
                ),
            ]
    return lines


def _srun_command(job: SlurmJob, request: SlurmRequest, folder: RunFolder, python: str) -> list[str]:
    layout = job.layout
    options = [
        f"--ntasks={layout.processes}",
        f"--ntasks-per-node={layout.per_node}",
        f"--cpus-per-task={_cores(job, request)}",
        *([] if request.cpu else [f"--gres={_gres(layout, request)}"]),
        "--distribution=block",
        "--kill-on-bad-exit=0",
        f"--wait={_WAIT_S}",
        "--export=ALL",
    ]
    command: Sequence[object] = [python, TRAIN_SCRIPT, "--config", folder.config_file.resolve()]
    return [
        _LOG_HEADER,
        *_srun_comment(layout, request),
        f"srun {' '.join(options)} \\",
        f"    {' '.join(map(_quoted, command))} \\",
        f"    --run_name {_quoted(folder.name)} --resume latest",
        "code=$?",
    ]


def _srun_comment(layout: SlurmLayout, request: SlurmRequest) -> list[str]:
    if layout.processes == 1:
        return ["# A plain start, without distributed training."]
    lines = ["# Each task gets its rank from srun's variables; rank 0 sends the others the run folder."]
    if not request.cpu:
        lines.append("# Every task sees all GPUs of its node, so that they can copy peer to peer, and uses its own.")
    return [*lines, f"# When a task fails, the others get {_WAIT_S} s to record what they know."]


def _exit_handling(request: SlurmRequest, folder: RunFolder) -> list[str]:
    by_hand = (
        f"echo {_quoted(f'The run is not complete. Continue it with:  sbatch {_quoted(script_path(folder))}')} >&2"
    )
    if not request.requeue:
        return [
            f"# {PAUSED}: paused after a backup, because SIGUSR1 announced the time limit.",
            f'[ "$code" != {PAUSED} ] && [ "$code" != {TERMINATED} ] || {by_hand}',
            'exit "$code"',
        ]
    return [
        f"# {PAUSED}: paused after a backup, because SIGUSR1 announced the time limit.",
        f"# {TERMINATED}: stopped after a backup by SIGTERM, with which Slurm starts a preemption. A cancelled job",
        "# ends with it as well, and is not requeued.",
        "is_preempted() {",
        f'    [ "$code" = {TERMINATED} ] && scontrol --oneliner show job "$SLURM_JOB_ID" | grep -q "PreemptTime=[0-9]"',
        "}",
        f'if [ "$code" = {PAUSED} ] || is_preempted; then',
        '    echo "Requeueing the job."',
        '    scontrol requeue "$SLURM_JOB_ID" && exit 0',
        "fi",
        f'[ "$code" != {PAUSED} ] && [ "$code" != {TERMINATED} ] || {by_hand}',
        'exit "$code"',
    ]


def _cores(job: SlurmJob, request: SlurmRequest) -> int:
    return request.cpus_per_gpu or 1 + job.config.loader_workers


def _gres(layout: SlurmLayout, request: SlurmRequest) -> str:
    kind = "" if request.gpu_type is None else f":{request.gpu_type}"
    return f"gpu{kind}:{layout.per_node}"


def _directive(name: str, value: object = None) -> str:
    if value is None:
        return f"#SBATCH --{name}"
    text = _one_line(value)
    if text != shlex.quote(text):  # sbatch supports double quotes, with backslash escapes
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{name}={text}"


def _default(name: str, value: str) -> str:
    return f'export {name}="${{{name}:-{value}}}"'


def _quoted(value: object) -> str:
    return shlex.quote(_one_line(value))


def _one_line(value: object) -> str:
    """The text of a value; raises ConfigError if a part of it would become a line of the script."""
    text = str(value)
    found = control_character(text)
    if found:
        raise ConfigError(
            f"{text!r} contains the control character {found}, which cannot be in a batch script",
            "Rename the folder or file, or correct the option",
        )
    return text
