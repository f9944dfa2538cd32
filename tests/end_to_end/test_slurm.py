"""The real command with a real Slurm: jobs that depend on each other, pauses, preemption, and refusals."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from modules.config import save_config
from modules.run import RunFolder
from scripts import submit_slurm
from tests import ssh_server
from tests.end_to_end.slurm_cluster import Cluster, cluster, skip_reason
from tests.runs import ROOT, Run, same_state, tiny_config

pytestmark = [pytest.mark.long, pytest.mark.end_to_end, pytest.mark.slow]

SUBMIT = str(ROOT / "scripts" / "submit_slurm.py")
SETTINGS = {"max_steps": 30, "ema": True, "loader_workers": 1}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    if reason := skip_reason():
        pytest.skip(reason)
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name has all that shells and sbatch could stumble over."""
    folder = tmp_path_factory.mktemp("slurm") / 'it\'s a "dir" #1, 100%j'
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def whole(slurm: Cluster, images: Path, place: Path) -> tuple[list[str], Run]:
    """The numbers of two jobs, one that fills the cache and one that trains, and what the second left behind."""
    done = submit(slurm, images, place, "whole", "--gpus", "2", "--gpus_per_node", "2", "--cache_gpus", "1")
    assert done.returncode == 0, done.stderr
    numbers = re.findall(r"^Job (\d+): ", done.stdout, re.MULTILINE)
    for number in numbers:
        slurm.wait_for_end(number)
    return numbers, run_of(place, "whole")


def submit(
    slurm: Cluster, images: Path, place: Path, name: str, *options: str, **settings: object
) -> subprocess.CompletedProcess[str]:
    family_options = {"dropout": 0.2, **settings}
    config = tiny_config(images, place, **SETTINGS, run_name=None, family_options=family_options)
    file = place / f"{name}.json"
    save_config(config, file)
    return slurm.run(
        *(sys.executable, SUBMIT, "--config", str(file), "--run_name", name, "--cpus_per_gpu", "1"),
        *("--time", "30", *options),
    )


def run_of(place: Path, name: str) -> Run:
    return Run(RunFolder(place / "runs" / name))


def job_logs(run: Run) -> str:
    """What the jobs of a run wrote."""
    return "".join(file.read_text() for file in sorted(run.folder.log_dir.glob("slurm-*.txt")))


def test_a_caching_job_is_followed_by_training_on_two_ranks(
    slurm: Cluster, whole: tuple[list[str], Run], place: Path
) -> None:
    numbers, run = whole
    caching = run_of(place, "whole-caching")
    logs = job_logs(caching) + job_logs(run)
    assert [slurm.job(number)["JobState"] for number in numbers] == ["COMPLETED", "COMPLETED"], logs
    assert [slurm.job(number)["TresPerNode"] for number in numbers] == ["gres:gpu:1", "gres:gpu:2"]
    assert caching.events()[-1]["reason"] == "cached"
    assert caching.events("started") == []
    assert run.events()[-1]["reason"] == "finished"
    assert run.events("started")[0]["world"] == 2
    assert not any(event.get("phase") == "caching" and event.get("total") for event in run.events("phase"))
    assert (run.folder.model_dir / "tandem.json").exists()
    assert "start 1, on tandem" in logs
    assert "Finished after step 30" in logs
    assert "Traceback" not in logs


def test_a_paused_and_preempted_job_ends_in_the_same_weights(
    slurm: Cluster, whole: tuple[list[str], Run], images: Path, place: Path
) -> None:
    fast = place / "fast"
    slow: dict[str, object] = {"slow_step_s": 0.4, "slow_until": f"|{fast}"}
    done = submit(slurm, images, place, "cut", "--cpu", "--gpus", "2", "--nodes", "2", **slow)
    assert done.returncode == 0, done.stderr
    assert "Warning: If one node of this cluster has 2 CPU processes, one node is enough" in done.stderr
    [number] = re.findall(r"^Job (\d+): ", done.stdout, re.MULTILINE)
    run = run_of(place, "cut")

    def trains(start: int) -> bool:
        """Whether the job's start of that number has made a step."""
        starts = [at for at, event in enumerate(run.events()) if event["type"] == "started"]
        return len(starts) == start and any(event["type"] == "step" for event in run.events()[starts[-1] :])

    slurm.wait_for(lambda: run.folder.events_file.exists() and trains(1), "the first step")
    slurm.say("scancel", "--signal=USR1", "--full", number)  # as at the time limit, and to the script itself, too
    slurm.wait_for(lambda: trains(2), "the second start")
    slurm.say("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    slurm.wait_for(lambda: len(run.events("finished")) == 2, "the end of the preempted start")
    fast.touch()
    job = slurm.wait_for_end(number)
    logs = job_logs(run)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "2"), logs
    assert [event["reason"] for event in run.events("finished")] == ["paused", "terminated", "finished"]
    assert logs.count("Requeueing the job.") == logs.count("Resuming at step") == 2
    assert "Traceback" not in logs
    assert same_state(run.state, whole[1].state)


def test_impossible_jobs_are_refused_before_queueing(
    slurm: Cluster, images: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_config(tiny_config(images, place, **SETTINGS, run_name=None), place / "refused.json")
    for name, value in slurm.variables.items():
        monkeypatch.setenv(name, value)
    for options, message in (
        (["--gpus", "2", "--set", "learnin_rate=1"], "did you mean learning_rate?"),
        (["--gpus", "2", "--set", "concepts=[{path: /nowhere}]"], "the folder '/nowhere' does not exist"),
        (["--gpus", "2", "--partition", "gold"], "Invalid partition name specified. Choose another --partition"),
        (["--gpus", "2", "--gpu_type", "h900"], "node configuration is not available. No node has all of that"),
    ):
        argv = ["--config", str(place / "refused.json"), "--run_name", "refused", *options]
        assert submit_slurm.main(argv) in {2, 4}
        said = capsys.readouterr().err
        assert said.startswith("Nothing was submitted: ")
        assert message in said
        assert "Traceback" not in said
    assert not (place / "runs" / "refused").exists()
    assert slurm.say("squeue", "--noheader") == ""


def test_srun_with_fewer_gpus_than_tasks_is_refused(slurm: Cluster, images: Path, place: Path) -> None:
    save_config(tiny_config(images, place, run_name="few"), place / "few.json")
    asked = ["--nodes=1", "--ntasks=2", "--gres=gpu:1"]
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(place / "few.json")]
    done = slurm.run("srun", *asked, *command)
    assert done.returncode == 2, done.stderr
    assert "2 tasks run on tandem1, but the job has 1 GPU there" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "runs" / "few").exists()


class Laptop:
    """A computer that reaches the login node by ssh alone; its runs/ has the copies."""

    def __init__(self, slurm: Cluster, server: ssh_server.SshServer, place: Path) -> None:
        self.slurm, self.place = slurm, place
        self._argv = [sys.executable, str(ROOT / "scripts" / "remote.py")]
        self._variables = {**os.environ, "PATH": server.path, "TANDEM_CONFIG_DIR": str(place / "config")}

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._argv, *words], cwd=self.place, stdout=-1, stderr=-2, encoding="utf-8", env=self._variables, stdin=-3
        )

    def say(self, *words: str, code: int = 0) -> str:
        done = self.begin(*words)
        said = done.communicate(timeout=300)[0]
        assert done.returncode == code, said
        return said

    def until(self, follow: subprocess.Popen[str], text: str) -> str:
        """What the command prints until a line has this text."""
        assert follow.stdout is not None
        seen = [next(follow.stdout)]
        while text not in seen[-1]:
            seen.append(next(follow.stdout))
        return "".join(seen)


@pytest.mark.skipif(bool(ssh_server.skip_reason()), reason=ssh_server.skip_reason() or "possible")
def test_a_cluster_that_only_ssh_reaches(
    slurm: Cluster, whole: tuple[list[str], Run], images: Path, tmp_path: Path
) -> None:
    """A run that waits, is requeued, stopped, and resumed, over a connection that breaks, is one in a piece."""
    there = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "TANDEM_CONFIG_DIR": str(tmp_path / "theirs")}
    for name in ("far", "other"):
        options = {"dropout": 0.2, "slow_step_s": 0.4, "slow_until": f"|{tmp_path}/fast"}
        config = tiny_config(images, tmp_path, **SETTINGS, run_name=name, runs_dir="runs", family_options=options)
        save_config(config, tmp_path / f"{name}.json")
    with ssh_server.ssh_server(tmp_path / "ssh", variables={**there, **slurm.variables}) as server:
        laptop, home = Laptop(slurm, server, tmp_path), server.home / "it's 100% mine"
        address = ["root@127.0.0.1", "--port", str(server.port), "--key", str(server.key), "--folder", f"~/{home.name}"]
        job = ["--slurm", "--cpu", "--gpus", "2", "--cpus_per_gpu", "1", "--time", "30"]
        laptop.say("add", "cluster", *address, *job)
        laptop.say("setup", "cluster", "--python", sys.executable)
        blocking = ["--nodes=2", "--exclusive", "--time=60", "--output=/dev/null", "--wrap", "sleep 600"]
        blocker = slurm.say("sbatch", "--parsable", *blocking)
        refused = laptop.say("check", "cluster", "far.json", "--trust_code", "--partition", "gold", code=2)
        assert "Invalid partition name specified. Choose another --partition" in refused
        laptop._variables["HF_TOKEN"] = "hf_" + "secret"
        said = laptop.say("start", "cluster", "far.json", "other.json", "--trust_code", "--send_token")
        [number, _] = re.findall(r"^Job (\d+): training with 2 CPU processes", said, re.MULTILINE)
        with laptop.begin("follow", "cluster", "far") as follow:
            laptop.until(follow, f"Job {number} waits in the queue: ")
            for ssh in psutil.Process(follow.pid).children():
                ssh.kill()
            laptop.until(follow, "was lost; connecting again")
            assert "waits in the queue" in laptop.say("clean", "cluster", "other", "--yes", code=3)
            assert "has left the queue" in laptop.say("stop", "cluster", "other")
            laptop.say("follow", "cluster", "other", code=130)
            slurm.say("scancel", blocker)
            laptop.until(follow, "Training 387 parameters")
            holding = [file for file in (home, slurm.root) for file in file.rglob("*") if is_in(b"hf_secret", file)]
            assert holding == [home / "state" / "far.token"]
            slurm.say("scancel", "--signal=USR1", "--full", number)  # as at the time limit
            laptop.until(follow, "waits in the queue: ")
            laptop.until(follow, "Resuming at step")
            assert "It will back up and stop" in laptop.say("stop", "cluster", "far")
            assert follow.wait(200) == 130
        (tmp_path / "fast").touch()
        assert not [file for file in home.rglob("*") if is_in(b"hf_secret", file)]
        assert laptop.say("start", "cluster", "far", "--resume", "--no-requeue").count("Job ") == 1
        assert "#SBATCH --no-requeue\n" in (home / "runs" / "far" / "slurm.sh").read_text()
        laptop.say("follow", "cluster", "far")
        assert "model, " in laptop.say("pull", "cluster", "far")
        assert same_state(Run(RunFolder(tmp_path / "runs" / "far")).state, whole[1].state)
        laptop.say("clean", "cluster", "--all", "--yes")
        assert list(server.home.iterdir()) == []


def is_in(text: bytes, file: Path) -> bool:
    return file.is_file() and text in file.read_bytes()
