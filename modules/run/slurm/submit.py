"""Handing a batch script to sbatch, and what to try where it refuses."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from modules.config import TandemError

_NODES = 'sinfo --format="%P %D %c %m %G %l" lists partitions, nodes, cores, MiB of memory, GPUs and time limits'
_ACCOUNTS = 'sacctmgr show associations user="$USER" format=Account,QOS lists what you may use'
# A word of sbatch's message, and what helps.
_ADVICE: Final[Sequence[tuple[str, str]]] = (
    (r"controller|configuration source|connect", "Slurm does not answer: try again later, and `scontrol ping`"),
    (r"gres|gpu", f"No node has so many GPUs, or of that --gpu_type; --cpu asks for none. {_NODES}"),
    (r"account|qos", f"Choose another --account or --qos. {_ACCOUNTS}"),
    (r"partition", f"Choose another --partition. {_NODES}"),
    (r"time limit", f"Ask for less --time, or choose another --partition. {_NODES}"),
    (r"node name", f"Correct --nodelist. {_NODES}"),
    (r"feature", f"Correct --constraint. {_NODES}"),
    (r"memory", f"Ask for less --mem. {_NODES}"),
    (
        r"configuration|cpu count|number of nodes",
        f"No node has all of that: see --gpus, --gpu_type, --cpus_per_gpu and --mem. {_NODES}",
    ),
    (r"--\w", "Correct the option that it names"),
)
# Variables of a job in which this command may be running; they would be taken for the new job's own.
_OF_A_JOB = re.compile(
    r"SLURM_(JOB|STEP|TASK|NODE|NTASKS|NPROCS|NNODES|PROCID|LOCALID|GTIDS|CPUS|GPUS|MEM|TRES|DISTRIB|"
    r"TOPOLOGY|SRUN|LAUNCH|PRIO|UMASK|SUBMIT|OPEN|RESTART|THREADS|EXPORT)\w*|SLURMD_\w*|SLURM_STEPID"
)


class SubmitError(TandemError):
    """sbatch is missing or refused the job."""

    exit_code = 2
    kind = "config"


def submit(script: Path, *, after: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Hand `script` to sbatch and return the job's number; `after` is the job whose good end it waits for.

    Raises SubmitError with sbatch's own words, and what to try.
    """
    command = ["sbatch", "--parsable"]
    if after is not None:
        # Without the second, a job whose forerunner failed would wait for ever.
        command += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
    said = _run([*command, str(script)], environ)
    return said.split(";")[0].strip()  # NUMBER;CLUSTER where there are several clusters


def cancel(job_id: str, environ: Mapping[str, str] = os.environ) -> None:
    """Take a job back that was submitted a moment ago."""
    _run(["scancel", job_id], environ)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> str:
    clean = {name: value for name, value in environ.items() if not _OF_A_JOB.fullmatch(name)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
    except FileNotFoundError:
        raise SubmitError(
            f"there is no command {command[0]} on this computer",
            "Submit from a login node of the cluster; --dry_run shows the script without submitting it",
        ) from None
    if done.returncode == 0:
        return done.stdout
    words = [re.sub(rf"^{command[0]}: (error|fatal): ", "", line) for line in done.stderr.splitlines() if line.strip()]
    raise SubmitError(
        f"{command[0]} refused the job: {'; '.join(words) or f'exit code {done.returncode}'}", _advice(words)
    )


def _advice(words: Sequence[str]) -> str:
    said = " ".join(words).lower()
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, said)), _NODES)
