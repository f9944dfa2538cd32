"""What Slurm says in the environment: of the step that this process belongs to, and of its nodes. Needs no scontrol."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Final

from modules.config import ConfigError

# From here on Slurm numbers what is no step of srun: the batch script, salloc's shell (where the cluster sets
# LaunchParameters=use_interactive_step), and the step that adopts ssh sessions. Their SLURM_NTASKS is the whole job's.
_FIRST_SPECIAL_STEP: Final = 0xFFFF_FFF0
_PORTS: Final = 1000
_ADVICE = "torchrun and srun set it; for a plain start unset RANK, WORLD_SIZE and SLURM_PROCID"


def started_by_srun(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process as one of several tasks.

    The script of an sbatch job sees SLURM_PROCID and SLURM_NTASKS as well, but it is no step: it lacks SLURM_STEP_ID.
    """
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    if step is None or "SLURM_PROCID" not in environ or number("SLURM_STEP_ID", step) >= _FIRST_SPECIAL_STEP:
        return False
    return tasks_of_step(environ) > 1


def tasks_of_step(environ: Mapping[str, str]) -> int:
    """How many tasks srun started together."""
    name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return number(name, environ.get(name, "1"))


def nodes_of_step(environ: Mapping[str, str]) -> int:
    """On how many nodes they run."""
    name = "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environ else "SLURM_NNODES"
    return number(name, environ.get(name, "1"))


def local_rank_of_step(environ: Mapping[str, str]) -> int:
    """This task's number on its node. Raises ConfigError where Slurm's variables contradict each other."""
    if "SLURM_LOCALID" not in environ and nodes_of_step(environ) > 1:
        raise ConfigError("the environment variable SLURM_LOCALID is missing on a job of several nodes", _ADVICE)
    local_rank = number("SLURM_LOCALID", environ.get("SLURM_LOCALID", environ["SLURM_PROCID"]))
    here = tasks_on_node(environ)
    if here is not None and not 0 <= local_rank < here:
        raise ConfigError(f"SLURM_LOCALID is {local_rank}, but {here} tasks of this step run on this node", _ADVICE)
    return local_rank


def master_of_step(environ: Mapping[str, str]) -> str:
    """Where the step's task 0 runs: this machine, or the first node. Raises ConfigError where nothing names it."""
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
    """A port that another job on the same node does not use: `first` plus the last three digits of the job's number."""
    job = number("SLURM_JOB_ID", environ.get("SLURM_JOB_ID", "0"))
    return first_port(first) + job % _PORTS


def first_port(wanted: int) -> int:
    """`wanted`, or the highest port that leaves room for all jobs."""
    return min(wanted, 65_536 - _PORTS)


def check_gpus_of_step(environ: Mapping[str, str], backend: str) -> str:
    """A note about GPUs of this node that no task uses, or nothing.

    Raises ConfigError where NCCL would meet two tasks on one GPU; gloo lets them share.
    """
    here = tasks_on_node(environ) if started_by_srun(environ) else None
    gpus = number("SLURM_GPUS_ON_NODE", environ.get("SLURM_GPUS_ON_NODE", "0"))
    if here is None or gpus in {0, here}:
        return ""
    node = environ.get("SLURMD_NODENAME", "this node")
    advice = f"--ntasks-per-node={gpus} with --gres=gpu:{gpus} gives each GPU a task"
    has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    if gpus > here:
        return f"the job has {has} on {node}, but {here} tasks, and each uses one: {advice}"
    if backend == "nccl":
        raise ConfigError(
            f"{here} tasks run on {node}, but the job has {has} there, and each task needs one of its own", advice
        )
    return ""


def tasks_on_node(environ: Mapping[str, str]) -> int | None:
    """How many tasks of the step run on this node; None where Slurm does not say."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if not text:
        return None
    counts: list[int] = []
    for part in text.split(","):  # such as 4(x2),1: 4 on each of two nodes, then 1
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ConfigError(f"the environment variable SLURM_STEP_TASKS_PER_NODE is {text!r}", _ADVICE)
        counts += [int(found[1])] * int(found[2] or 1)
    node = number("SLURM_NODEID", environ.get("SLURM_NODEID", "0"))
    if not 0 <= node < len(counts):
        raise ConfigError(f"SLURM_NODEID is {node}, but the step runs on {len(counts)} nodes", _ADVICE)
    return counts[node]


def expand_nodes(text: str) -> list[str]:
    """All names of a list such as `gpu[01-03,7],login`, in order. Raises ConfigError where it cannot be read."""
    parts = re.findall(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text.strip().strip(","):
        raise _unreadable(text)
    return [name for part in parts for name in _expand(part, text)]


def _expand(part: str, text: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)  # literal, range, literal, range, ...
    choices = [_range(piece, text) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return ["".join(chosen) for chosen in product(*choices)]


def _range(piece: str, text: str) -> list[str]:
    names: list[str] = []
    for item in piece.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", item)
        if found is None:
            raise _unreadable(text)
        first, last = found[1], found[2] or found[1]
        names += [str(each).zfill(len(first)) for each in range(int(first), int(last) + 1)]
    return names


def _unreadable(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no list of nodes", "Write it as Slurm does, such as gpu01,gpu02 or gpu[01-04]")


def number(name: str, text: str) -> int:
    """The whole number that an environment variable holds. Raises ConfigError naming it."""
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {text!r}; it must be a whole number", _ADVICE) from None
