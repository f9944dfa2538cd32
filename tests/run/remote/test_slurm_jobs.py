"""Runs that Slurm starts, and what a login node says of them: words of Slurm, or of whoever answers in its place."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from modules.files import FileFault, validate_record
from modules.run.remote.far_files import StateFiles
from modules.run.remote.far_messages import receive, send
from modules.run.remote.job import Job
from modules.run.remote.slurm_jobs import SlurmFault, SlurmRuns, find_commands
from tests.run.remote.test_far_side import ask, program, say

if sys.platform != "win32":
    import fcntl

WAITS = {"id": "4711", "state": "PENDING", "is_alive": True, "reason": "Priority", "position": 3, "code": None}


def test_a_job_says_what_it_waits_for() -> None:
    soon = int(time.time()) + 60
    clock = time.strftime("%H:%M", time.localtime(soon))
    said = str(validate_record(Job, {**WAITS, "starts": soon}))
    assert said.startswith("Job 4711 waits in the queue: 3rd, Priority; starts about ")
    assert said.endswith(f"{clock}.")
    places = {1: "1st", 2: "2nd", 11: "11th", 12: "12th", 23: "23rd", 113: "113th", 1001: "1,001st"}
    for position, place in places.items():
        assert f": {place}, Priority." in str(validate_record(Job, {**WAITS, "position": position, "starts": 5}))
    runs = validate_record(Job, {**WAITS, "state": "RUNNING", "nodes": "gpu[01-02]"})
    assert runs.runs
    assert str(runs) == "Job 4711 runs on gpu[01-02]."
    assert str(validate_record(Job, {**WAITS, "state": "TIMEOUT", "is_alive": False})) == "Job 4711 has ended: TIMEOUT."
    lost = validate_record(Job, {**WAITS, "fault": "scontrol says: Unable to contact slurm controller"})
    assert str(lost) == "Slurm does not tell of job 4711 now: scontrol says: Unable to contact slurm controller"
    assert not lost.runs


def test_a_hostile_login_node_says_little() -> None:
    assert "\x1b" not in str(validate_record(Job, {**WAITS, "reason": "\x1b]0;owned\x07", "state": "\x1b[2J"}))
    for wrong in ({"id": "1;rm"}, {"id": "1" * 20}, {"state": "S" * 301}, {"position": 0}, {"starts": 1 << 40}):
        with pytest.raises(FileFault):
            validate_record(Job, {**WAITS, **wrong})


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for commands of a Slurm that answers as it likes, first in PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path / "bin"


def write_command(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.mark.skipif(os.name == "nt", reason="login nodes have no Windows")
def test_a_slurm_that_does_not_answer_ends_nothing(tmp_path: Path, commands: Path) -> None:
    (tmp_path / "x.jobs").write_text("Warning: none\nJob 5: training with 1 GPU on one node\nQueue: squeue --jobs 5\n")
    write_command(commands / "scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")

    def runs() -> SlurmRuns:
        return SlurmRuns(StateFiles(str(tmp_path)), str(tmp_path), {})

    assert runs().is_alive("x")
    job = runs().job("x")
    assert job is not None
    assert "Unable to contact" in job["fault"]
    write_command(commands / "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert not runs().is_alive("x")
    assert runs().exit_code("x") is None
    ended = "JobId=5 JobName=x JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0 Command=/x JobState=RUNNING"
    write_command(commands / "scontrol", f"echo '{ended}'")
    assert (runs().is_alive("x"), runs().exit_code("x")) == (False, 3), "the file that says it may come later"
    write_command(commands / "scontrol", "echo 'JobState=CANCELLED ExitCode=0:0'")
    assert (runs().is_alive("x"), runs().exit_code("x")) == (False, None)
    assert not runs().is_alive("y"), "Slurm was not to start it"


@pytest.mark.skipif(os.name == "nt", reason="login nodes have no Windows")
def test_commands_that_only_a_login_shell_finds(
    tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, far = tmp_path / "shell", tmp_path / "slurm"
    far.mkdir()
    write_command(shell, f"echo 'Welcome to the cluster'; PATH={far}:$PATH; eval \"$2\"")
    monkeypatch.setenv("SHELL", str(shell))
    monkeypatch.setenv("PATH", f"{commands}")
    with pytest.raises(SlurmFault, match="no command sbatch there"):
        find_commands()
    write_command(far / "sbatch", "")
    monkeypatch.setenv("PATH", f"{commands}")
    find_commands()
    assert os.environ["PATH"].split(os.pathsep)[0] == str(far)


ASKED = {"config": "{}", "token": "hf_x", "arguments": [], "slurm": ["--gpus=2"], "given": []}
_SUBMITS = """import json, os, sys
if "--gpus=9" in sys.argv:
    sys.exit("Nothing was submitted: there are no 9 GPUs.")
print("Warning: slow.")
print(f"Job 5: training ({os.environ['XDG_CACHE_HOME']})")
json.dump(sys.argv, open("argv", "w"))
"""


@pytest.mark.skipif(os.name == "nt", reason="login nodes have no Windows")
def test_a_job_is_resumed_as_it_was_started(tmp_path: Path, commands: Path) -> None:
    """A start that is refused leaves what was known of the one before, and no token."""
    write_command(commands / "sbatch", "")
    (tmp_path / "submit.py").write_text(_SUBMITS)
    (tmp_path / "code").symlink_to(tmp_path)
    runs = SlurmRuns(StateFiles(str(tmp_path)), str(tmp_path), {"XDG_CACHE_HOME": "/it's here"})

    def submit(*given: str, resumes: bool = False, start_id: str = "1") -> list[str]:
        asked = {**ASKED, "id": start_id, "given": given}
        with (tmp_path / "lock").open("w") as lock:
            return runs.submit("x", asked, [sys.executable, "submit.py"], lock.fileno(), resumes=resumes)

    assert submit("--time=2-0") == ["Warning: slow.", "Job 5: training (/it's here)"]
    argv = (tmp_path / "argv").read_text()
    assert argv.endswith(', "--gpus=2", "--time=2-0"]')
    assert "hf_x" not in argv
    assert (tmp_path / "x.token").read_text() == "hf_x"
    for kind, text in (("exit", "138"), ("part", "alpha")):
        (tmp_path / f"x.{kind}").write_text(text)
    runs.remove_token("x")
    assert not (tmp_path / "x.token").exists()
    with pytest.raises(SlurmFault, match="Nothing was submitted: there are no 9 GPUs"):
        submit("--gpus=9", resumes=True, start_id="resume-2")
    assert not (tmp_path / "x.token").exists()
    assert ((tmp_path / "x.exit").read_text(), runs.job_id("x")) == ("138", "5")
    assert (tmp_path / "x.id").read_text() == "1", "the start that was refused has not come about"
    with pytest.raises(OSError, match="No such file"):
        runs.submit("y", {**ASKED, "id": "3"}, ["/no/python"], 0, resumes=False)
    assert [file.name for file in tmp_path.glob("y.*")] == ["y.id"], "neither token nor config"
    submit("--nodes=2", resumes=True)
    assert (tmp_path / "argv").read_text().endswith(', "--gpus=2", "--time=2-0", "--nodes=2"]')
    assert not (tmp_path / "x.exit").exists(), "it has not ended"
    assert not (tmp_path / "x.part").exists(), "it is none of another machine's"
    assert not (tmp_path / "x.config.json").exists()


@pytest.mark.skipif(os.name == "nt", reason="login nodes have no Windows")
def test_a_token_stays_only_while_a_run_needs_it(tmp_path: Path, commands: Path) -> None:
    """Not of a job that has left the queue, nor of a start that was killed; but of one that is being submitted."""
    home, state = tmp_path / "home", tmp_path / "home" / "state"
    say(home, {"do": "make"})
    state.mkdir()
    for name in ("waits", "killed", "starts"):
        (state / f"{name}.token").write_text("hf_x")
    for name in ("waits", "starts"):
        (home / "runs" / name / "commands").mkdir(parents=True)
    (state / "waits.jobs").write_text("Job 5: training\n")
    (state / "waits.lock").touch()
    answers = 'test -e ended && echo "JobState=CANCELLED" || echo "JobState=PENDING Reason=Priority"'
    write_command(commands / "scontrol", f"cd {tmp_path}; {answers}")
    write_command(commands / "scancel", f"touch {tmp_path}/ended")
    write_command(commands / "squeue", "")
    with (state / "starts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        say(home, {"do": "runs"})
        assert {file.name for file in state.glob("*.token")} == {"waits.token", "starts.token"}
        said = say(home, {"do": "command", "run": "waits", "command": "stop", "content": ""})
        assert said[0]["has_waited"]
        assert {file.name for file in state.glob("*.token")} == {"starts.token"}
    say(home, {"do": "clean", "run": "", "all": False})
    assert not list(state.glob("*.token"))


@pytest.mark.skipif(os.name == "nt", reason="login nodes have no Windows")
def test_a_stop_that_slurm_is_too_busy_for_is_tried_again(tmp_path: Path, commands: Path) -> None:
    home = tmp_path / "home"
    say(home, {"do": "make"})
    (home / "state").mkdir()
    (home / "runs" / "x" / "commands").mkdir(parents=True)
    (home / "state" / "x.jobs").write_text("Job 5: training\n")
    answers = 'test -e ended && echo "JobState=CANCELLED" || echo "JobState=PENDING Reason=Priority"'
    write_command(commands / "scontrol", f"cd {tmp_path}; {answers}")
    write_command(commands / "scancel", f"cd {tmp_path}; test -e busy && touch ended || {{ touch busy; exit 1; }}")
    write_command(commands / "squeue", "")
    with program(home) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        follow = {"do": "follow", "run": "x", "logs": {}, "wholes": {}, "digest": "", "config": False}
        said: list[Any] = [ask(process, follow)]
        send(process.stdin, {"do": "command", "run": "x", "command": "stop", "content": ""})
        while "end" not in said[-1] and "error" not in said[-1]:
            received = receive(process.stdout)
            assert received is not None
            said.append(json.loads(received[0]))
        process.stdin.close()
    assert {"is_active": True, "has_waited": True, "taken": "stop"} in said
    assert (said[-1]["end"], said[-1]["code"]) == (True, 130)
