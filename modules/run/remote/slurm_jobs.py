"""What Slurm says of jobs, on the login node of a cluster, and what is asked of it there.

A part of the program of far_side.py, which is sent over ssh: any Python from 3.8 on runs it without a package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from typing import Any

JOB = re.compile(r"^Job (\d{1,12}): ", re.MULTILINE)  # in what submit_slurm.py prints
_ASKS_EVERY_S = 5.0  # clusters ask their users not to do so all the time
_LOOKS_AT_QUEUE_EVERY_S = 30.0
_TAKES_AT_MOST_S = 60.0
_MOST = 8 << 20  # characters of an answer; a queue of 100,000 jobs has 1 MB
_OVER = frozenset((
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT", "GONE"),
))  # fmt: skip
WAITS = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
_GONE = {"state": "GONE", "is_alive": False, "code": None}  # Slurm forgets a job some minutes after its end


class SlurmFault(Exception):
    """What Slurm answers, or that it does not: one sentence, for the person at the other side."""


class SlurmJobs:
    """The jobs that somebody asks about, each asked for at most every few seconds."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, dict[str, Any]]] = {}
        self._places: dict[str, tuple[float, int | None]] = {}

    def job(self, job_id: str) -> dict[str, Any]:
        """State, reason, place in the queue, when it may start (seconds since 1970), nodes, exit code, and whether it
        is alive: waits or runs, or may do so while Slurm does not answer."""
        asked_at, last = self._told.get(job_id, (0.0, None))
        if last is not None and time.monotonic() - asked_at < _ASKS_EVERY_S:
            return last
        try:
            found = self._ask(job_id)
        except SlurmFault as fault:
            before = {} if last is None else last
            found = {"id": job_id, "state": "UNKNOWN", "is_alive": True, "code": None, **before, "fault": str(fault)}
        self._told[job_id] = (time.monotonic(), found)
        return found

    def _ask(self, job_id: str) -> dict[str, Any]:
        try:
            said = _say("scontrol", "--oneliner", "show", "job", job_id)
        except SlurmFault as fault:
            if "invalid job id" in str(fault).lower():
                return {"id": job_id, **_GONE}
            raise

        def value(name: str) -> str:
            found = re.search(rf"(?:^| ){name}=(\S{{1,200}})", said)
            return "" if found is None or found.group(1) in ("(null)", "None", "N/A", "Unknown") else found.group(1)

        state, starts = value("JobState"), value("StartTime")
        waits, code = state in WAITS, re.match(r"(\d{1,3}):0$", value("ExitCode"))
        has_code = code is not None and state in _OVER and (state == "COMPLETED" or code.group(1) != "0")
        return {
            "id": job_id,
            "state": state,
            "is_alive": state not in _OVER,
            "reason": value("Reason") if waits else "",
            "position": self._position(job_id, value("Partition")) if waits else None,
            "starts": int(starts) if waits and starts.isdecimal() else None,
            "nodes": value("NodeList") if not waits else "",
            "code": int(code.group(1)) if code is not None and has_code else None,
        }

    def _position(self, job_id: str, partition: str) -> int | None:
        """Its place among the jobs that wait for its partition, from 1, as far as this user may see them."""
        asked_at, place = self._places.get(job_id, (-_LOOKS_AT_QUEUE_EVERY_S, None))
        if time.monotonic() - asked_at < _LOOKS_AT_QUEUE_EVERY_S:
            return place
        only = ["--partition=" + partition] if partition else []
        try:
            waiting = _say("squeue", "--noheader", "--states=PENDING", *only, "--sort=-p,i", "--format=%A").split()
        except SlurmFault:
            waiting = []
        place = waiting.index(job_id) + 1 if job_id in waiting else None
        self._places[job_id] = (time.monotonic(), place)
        return place

    def cancel(self, job_id: str, *, only_if_it_waits: bool) -> bool:
        """Cancel it; whether it waits no longer and does not run. Raises SlurmFault."""
        self._told.pop(job_id, None)
        only = ["--state=PENDING"] if only_if_it_waits else []
        if only and self.job(job_id)["state"] not in WAITS:
            return False
        _say("scancel", *only, job_id)
        self._told.pop(job_id, None)
        return not self.job(job_id)["is_alive"]


def find_commands() -> None:
    """Where only a login shell finds Slurm's commands, have its PATH. Raises SlurmFault if there are none."""
    if shutil.which("sbatch") is None:
        shell = os.environ.get("SHELL") or "/bin/sh"
        said = _say(shell, "-lc", 'echo; echo "$PATH"').splitlines()
        os.environ["PATH"] = said[-1] if said else os.environ["PATH"]
    if shutil.which("sbatch") is None:
        raise SlurmFault("there is no command sbatch there; is it the login node of a Slurm cluster?")


def _say(*argv: str) -> str:
    """What a command prints. Raises SlurmFault."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=_TAKES_AT_MOST_S,
            check=False,
        )
    except OSError as error:
        raise SlurmFault(f"{argv[0]} cannot be run there: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmFault(f"{argv[0]} has not answered within {_TAKES_AT_MOST_S:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr[-2000:].decode(errors="replace").strip().splitlines()
        raise SlurmFault(f"{argv[0]} says: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout[:_MOST].decode(errors="replace")
