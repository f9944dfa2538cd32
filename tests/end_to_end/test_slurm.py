"""The real command with a real Slurm: jobs that depend on each other, pauses, preemption, and refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.config import save_config
from modules.run import RunFolder
from scripts import submit_slurm
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
    done = submit(slurm, images, place, "cut", "--cpu", "--gpus", "2", "--nodes", "2", slow_step_s=0.4)
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
