"""Submits batch scripts with sbatch, with advice if it rejects them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from modules.run.cluster.command import run_command

_NODES = 'sinfo --format="%P %D %c %m %G %l" lists partitions, nodes, cores, MiB of memory, GPUs and time limits'
_ACCOUNTS = 'sacctmgr show associations user="$USER" format=Account,QOS lists what you may use'
# A pattern in sbatch's message, and the advice.
_ADVICE: Final[Sequence[tuple[str, str]]] = (
    (r"controller|configuration source|connect", "Slurm does not respond: try again later, and check `scontrol ping`"),
    (r"gres|gpu", f"No node has that many GPUs, or that --gpu_type; --cpu requests none. {_NODES}"),
    (r"account|qos", f"Choose another --account or --qos. {_ACCOUNTS}"),
    (r"partition", f"Choose another --partition. {_NODES}"),
    (r"time limit", f"Request less --time, or choose another --partition. {_NODES}"),
    (r"node name", f"Correct --nodelist. {_NODES}"),
    (r"feature", f"Correct --constraint. {_NODES}"),
    (r"memory", f"Request less --mem. {_NODES}"),
    (
        r"configuration|cpu count|number of nodes",
        f"No node has all of that: check --gpus, --gpu_type, --cpus_per_gpu and --mem. {_NODES}",
    ),
    (r"--\w", "Correct the option that it names"),
)
# Variables of a job that this command may be running in; the new job would inherit them.
_JOB_VARIABLE = re.compile(
    r"SLURM_(JOB|STEP|TASK|NODE|NTASKS|NPROCS|NNODES|PROCID|LOCALID|GTIDS|CPUS|GPUS|MEM|TRES|DISTRIB|"
    r"TOPOLOGY|SRUN|LAUNCH|PRIO|UMASK|SUBMIT|OPEN|RESTART|THREADS|EXPORT)\w*|SLURMD_\w*|SLURM_STEPID"
)


def submit(script: Path, *, after: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Submit `script` and return the job ID; `after` is a job that must succeed first.

    Raises SubmitError with sbatch's message and advice.
    """
    command = ["sbatch", "--parsable"]
    if after is not None:
        # Without the second, a job would wait forever if the other one failed.
        command += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
    output = _run([*command, str(script)], environ)
    return output.split(";")[0].strip()  # ID;CLUSTER if there are several clusters


def would_take(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """What Slurm says of a batch script that it need not take, such as when it would start. Raises SubmitError."""
    said = _run(["sbatch", "--test-only"], environ, text)
    return said.strip().removeprefix("sbatch: ")


def cancel(job_id: str, environ: Mapping[str, str] = os.environ) -> None:
    """Cancel a job."""
    _run(["scancel", job_id], environ)


def _run(command: Sequence[str], environ: Mapping[str, str], text: str | None = None) -> str:
    return run_command(
        command,
        {name: value for name, value in environ.items() if not _JOB_VARIABLE.fullmatch(name)},
        _ADVICE,
        missing="Submit from a login node of the cluster; --dry_run shows the script without submitting it",
        otherwise=_NODES,
        text=text,
    )
