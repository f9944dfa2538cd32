"""The runs that Slurm starts, on the login node of a cluster: their jobs, and what Slurm says of them.

A part of the program of far_side.py, which is sent over ssh: any Python from 3.8 on runs it without a package.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modules.run.remote.far_files import StateFiles, write

_JOB = re.compile(r"^Job (\d{1,12}): ", re.MULTILINE)  # in what submit_slurm.py prints
_ASKS_EVERY_S = 5.0  # clusters ask their users not to do so all the time
_LOOKS_AT_QUEUE_EVERY_S = 30.0
_TAKES_AT_MOST_S = 60.0
_MOST = 8 << 20  # characters of an answer or a file; a queue of 100,000 jobs has 1 MB
_OVER = frozenset((
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT", "GONE"),
))  # fmt: skip
WAITS = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
_GONE = {"state": "GONE", "is_alive": False, "code": None}  # Slurm forgets a job some minutes after its end


class SlurmFault(Exception):
    """What Slurm answers, or that it does not: one sentence, for the person at the other side."""


class SlurmRuns:
    """Runs in the folder `home`, of whose programs `variables` are; `state` has of each what submit_slurm.py has said
    (jobs), the options of its job (slurm), its exit code (exit), the times of its starts (times), and its token."""

    def __init__(self, state: StateFiles, home: str, variables: Mapping[str, str]) -> None:
        self._state, self._home, self._variables = state, home, variables
        self._jobs = _Jobs()

    def submit(
        self, name: str, asked: Mapping[str, Any], program: Sequence[str], lock: int, *, resumes: bool
    ) -> list[str]:
        """Have Slurm start it, or resume it, with submit_slurm.py, the `program`; the job and the warnings that this
        tells. Raises SlurmFault."""
        find_commands()
        words = [*asked["slurm"], *asked["given"]]
        if resumes and (kept := self._state.read(name, "slurm", _MOST)):  # it goes on as it was started
            words = [*json.loads(kept), *asked["given"]]
        before = {kind: self._state.read(name, kind, _MOST) for kind in ("exit", "jobs", "part", "id")}
        try:
            lines = self._submit(name, asked, program, words, lock, resumes=resumes)
        except (OSError, SlurmFault):  # it is as before, without a token
            self._state.remove(name, "token")
            for kind, text in before.items():
                if text:
                    self._state.write(name, kind, text)
                elif kind != "id":  # which says whose a folder is that may be left
                    self._state.remove(name, kind)
            raise
        self._state.write(name, "slurm", json.dumps(words))
        return [line for line in lines if line.startswith("Warning: ") or _JOB.match(line)][:20]

    def _submit(
        self, name: str, asked: Mapping[str, Any], program: Sequence[str], words: list[str], lock: int, *, resumes: bool
    ) -> list[str]:
        self._state.remove(name, "exit", "jobs", "part")  # before the id says whose they would be
        self._state.write(name, "id", asked["id"])
        run = os.path.join(self._home, "runs", name)
        config = os.path.join(run, "config.json") if resumes else self._state.path(name, "config.json")
        argv = [*program, "--config", config, "--run_name", name, *(["--resume", "latest"] if resumes else [])]
        argv += [f"--setup_line={line}" for line in self._lines(name, has_token=bool(asked["token"]))]
        try:
            if asked["token"]:
                self._state.write(name, "token", asked["token"])
            if not resumes:
                write(config, asked["config"])
            with open(self._state.path(name, "jobs"), "wb") as output:
                status = subprocess.run(
                    [*argv, *asked["arguments"], *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=os.path.join(self._home, "code"),
                    env={**os.environ, **self._variables},
                    pass_fds=[lock],
                    check=False,
                ).returncode
        finally:
            self._state.remove(name, "config.json")
        lines = self._state.read(name, "jobs", _MOST).splitlines()
        if status == 0 and self.job_id(name):
            return lines
        faults = [line for line in lines if line.startswith("Nothing was submitted: ")]
        raise SlurmFault((faults or lines or ["submit_slurm.py has ended without a word"])[-1])

    def _lines(self, name: str, *, has_token: bool) -> Iterator[str]:
        """Lines of the batch script: its variables, and what it tells this program. A token is in a file alone, as
        Slurm keeps the variables of jobs, on some clusters for ever."""
        times, ended, token = (shlex.quote(self._state.path(name, kind)) for kind in ("times", "exit", "token"))
        given = {**self._variables, **({"HF_TOKEN_PATH": self._state.path(name, "token")} if has_token else {})}
        yield f"export {' '.join(f'{each}={shlex.quote(value)}' for each, value in given.items())}"
        yield f'rm -f {ended}; echo "start $(date +%s)" >>{times}'
        yield (
            f'tell_end() {{ local status=$?; echo "end $(date +%s)" >>{times}; [ "$status" = "${{code-}}" ] || return; '
            f'rm -f {token}; echo "$code" >{ended}.new && mv {ended}.new {ended}; }}  # not if it is requeued'
        )
        yield "trap tell_end EXIT"

    def job_id(self, name: str) -> str:
        """Of the newest start of a run; "" if Slurm was not to start it."""
        found = _JOB.findall(self._state.read(name, "jobs", _MOST))
        return found[-1] if found else ""

    def job(self, name: str) -> dict[str, Any] | None:
        """What Slurm says of a run, until its exit code is known."""
        job_id = self.job_id(name)
        return self._jobs.job(job_id) if job_id and not os.path.exists(self._state.path(name, "exit")) else None

    def is_alive(self, name: str) -> bool:
        """Whether its job waits or runs, as far as is known."""
        job = self.job(name)
        return job is not None and bool(job["is_alive"])

    def described(self, name: str) -> str:
        """ "job 4711, which waits in the queue"."""
        waits = self._jobs.job(self.job_id(name))["state"] in WAITS
        return f"job {self.job_id(name)}, which {'waits in the queue' if waits else 'runs'}"

    def exit_code(self, name: str) -> int | None:
        """That of a script that could not tell it, or not yet."""
        job = self.job(name)
        return None if job is None else job["code"]

    def leave_queue(self, name: str) -> bool:
        """Whether its job has waited, and does so no longer. Raises SlurmFault."""
        if not self._jobs.cancel_waiting(self.job_id(name)):
            return False
        self._state.write(name, "exit", "130")  # no script tells it, nor removes the token
        self._state.remove(name, "token")
        return True

    def end(self, name: str) -> None:
        """End its job at once, as far as the cluster does. Raises SlurmFault."""
        self._jobs.cancel(self.job_id(name))

    def remove_token(self, name: str) -> None:
        """Of a run that is not active any more; its script does so, unless it was killed or never started."""
        self._state.remove(name, "token")


class _Jobs:
    """What Slurm says of jobs, each asked for at most every few seconds."""

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

    def cancel_waiting(self, job_id: str) -> bool:
        """Cancel it if it waits; whether it was in time. Raises SlurmFault."""
        self._told.pop(job_id, None)
        if self.job(job_id)["state"] not in WAITS:
            return False
        _say("scancel", "--state=PENDING", job_id)
        self._told.pop(job_id, None)
        return not self.job(job_id)["is_alive"]

    def cancel(self, job_id: str) -> None:
        """End it at once, as far as the cluster does. Raises SlurmFault."""
        self._told.pop(job_id, None)
        _say("scancel", job_id)


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
            capture_output=True,
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
