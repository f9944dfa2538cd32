"""Reads Slurm's environment variables: the job step of this process and its nodes. Needs no scontrol."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import product
from typing import Final

from modules.config import ConfigError

# Step IDs from here on are not steps of srun: the batch script, salloc's shell (if the cluster sets
# LaunchParameters=use_interactive_step), and the step that adopts ssh sessions. Their SLURM_NTASKS is the whole job's.
_FIRST_SPECIAL_STEP: Final = 0xFFFF_FFF0
_PORTS_PER_NODE: Final = 1000
_MOST_NODES: Final = 1 << 16  # of one part of a list, which is written out; the largest clusters have a tenth
_ADVICE = "torchrun and srun set it; without a launcher, unset RANK, WORLD_SIZE and SLURM_PROCID"


def started_by_srun(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process as one of several tasks.

    The script of an sbatch job has SLURM_PROCID and SLURM_NTASKS as well, but is not a step: it has no SLURM_STEP_ID.
    """
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    if step is None or "SLURM_PROCID" not in environ or number("SLURM_STEP_ID", step) >= _FIRST_SPECIAL_STEP:
        return False
    return tasks_of_step(environ) > 1


def tasks_of_step(environ: Mapping[str, str]) -> int:
    """The number of tasks of the step."""
    name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return number(name, environ.get(name, "1"))


def nodes_of_step(environ: Mapping[str, str]) -> int:
    """The number of nodes of the step."""
    name = "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environ else "SLURM_NNODES"
    return number(name, environ.get(name, "1"))


def local_rank_of_step(environ: Mapping[str, str]) -> int:
    """The local rank of this task on its node. Raises ConfigError if Slurm's variables are inconsistent."""
    if "SLURM_LOCALID" not in environ and nodes_of_step(environ) > 1:
        raise ConfigError("the environment variable SLURM_LOCALID is missing in a job on several nodes", _ADVICE)
    local_rank = number("SLURM_LOCALID", environ.get("SLURM_LOCALID", environ["SLURM_PROCID"]))
    here = tasks_on_node(environ)
    if here is not None and not 0 <= local_rank < here:
        raise ConfigError(f"SLURM_LOCALID is {local_rank}, but {here} tasks of this step run on this node", _ADVICE)
    return local_rank


def master_of_step(environ: Mapping[str, str]) -> str:
    """The address of task 0: this machine or the first node. Raises ConfigError if no variable names it."""
    if nodes_of_step(environ) == 1:
        return "127.0.0.1"
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(name):
            return expand_nodes(environ[name])[0]
    if "SLURM_LAUNCH_NODE_IPADDR" in environ:
        return environ["SLURM_LAUNCH_NODE_IPADDR"]
    raise ConfigError(
        "the job has several nodes, but neither MASTER_ADDR nor SLURM_JOB_NODELIST names the first",
        'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" before srun',
    )


def port_of_job(environ: Mapping[str, str], first: int) -> int:
    """A port that differs between jobs on the same node: `first` plus the last three digits of the job ID."""
    job = number("SLURM_JOB_ID", environ.get("SLURM_JOB_ID", "0"))
    return base_port(first) + job % _PORTS_PER_NODE


def base_port(wanted: int) -> int:
    """`wanted`, or the highest port that leaves room for the ports of all jobs."""
    return min(wanted, 65_536 - _PORTS_PER_NODE)


def check_gpus_of_step(environ: Mapping[str, str], backend: str) -> str:
    """A note about unused GPUs of this node, or an empty string.

    Raises ConfigError if two tasks would share a GPU under NCCL; gloo allows that.
    """
    here = tasks_on_node(environ) if started_by_srun(environ) else None
    gpus = number("SLURM_GPUS_ON_NODE", environ.get("SLURM_GPUS_ON_NODE", "0"))
    if here is None or gpus in {0, here}:
        return ""
    node = environ.get("SLURMD_NODENAME", "this node")
    advice = f"--ntasks-per-node={gpus} with --gres=gpu:{gpus} gives each GPU a task"
    has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    if gpus > here:
        return f"the job has {has} on {node}, but {here} tasks, which use one each: {advice}"
    if backend == "nccl":
        raise ConfigError(
            f"{here} tasks run on {node}, but the job has {has} there, and each task needs its own", advice
        )
    return ""


def tasks_on_node(environ: Mapping[str, str]) -> int | None:
    """The number of tasks of the step on this node; None if Slurm does not set it."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if not text:
        return None
    counts: list[int] = []
    for part in text.split(","):  # e.g. 4(x2),1: 4 on each of two nodes, then 1
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ConfigError(f"the environment variable SLURM_STEP_TASKS_PER_NODE is {text!r}", _ADVICE)
        counts += [int(found[1])] * int(found[2] or 1)
    node = number("SLURM_NODEID", environ.get("SLURM_NODEID", "0"))
    if not 0 <= node < len(counts):
        raise ConfigError(f"SLURM_NODEID is {node}, but the step runs on {len(counts)} nodes", _ADVICE)
    return counts[node]


def expand_nodes(text: str) -> list[str]:
    """All names of a list such as `gpu[01-03,7],login`, in order. Raises ConfigError if it is invalid."""
    parts = re.findall(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text.strip().strip(","):
        raise _invalid_node_list(text)
    return [name for part in parts for name in _expand(part, text)]


def _expand(part: str, text: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)  # literal, range, literal, range, ...
    choices = [_range(piece, text) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > _MOST_NODES:
        raise _invalid_node_list(text)
    return ["".join(chosen) for chosen in product(*choices)]


def _range(piece: str, text: str) -> list[str]:
    names: list[str] = []
    for item in piece.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", item)
        if found is None:
            raise _invalid_node_list(text)
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < _MOST_NODES - len(names):
            raise _invalid_node_list(text)
        names += [str(each).zfill(len(first)) for each in range(int(first), int(last) + 1)]
    return names


def _invalid_node_list(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is not a list of nodes, of at most {_MOST_NODES:,}",
        "Write it as Slurm does, such as gpu01,gpu02 or gpu[01-04]",
    )


def number(name: str, text: str) -> int:
    """The integer value of an environment variable. Raises ConfigError naming it."""
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {text!r}; it must be an integer", _ADVICE) from None
