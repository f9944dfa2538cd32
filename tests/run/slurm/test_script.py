"""Slurm requests, layouts, warnings and errors, and batch scripts as bash reads them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modules.config import ConfigError, TrainConfig
from modules.run import RunFolder
from modules.run.cluster.command import SubmitError
from modules.run.cluster.job import time_limit_s
from modules.run.slurm.layout import SlurmRequest, plan_layout
from modules.run.slurm.script import plan_jobs, render
from modules.run.slurm.submit import submit
from scripts.submit_slurm import warnings_of


def script(request: SlurmRequest, *, folder: Path = Path("/runs/x"), **settings: object) -> str:
    [*_, job] = plan_jobs(TrainConfig.model_validate(settings), request)
    return render(job, request, RunFolder(folder), Path("/work"), python="/venv/bin/python")


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize(
    ("asked", "nodes", "per_node", "exclusive", "warning"),
    [
        ({"gpus": 4}, 1, 4, False, ""),
        ({"gpus": 4, "gpus_per_node": 8}, 1, 4, False, ""),
        ({"gpus": 8, "gpus_per_node": 8}, 1, 8, True, ""),
        ({"gpus": 8, "gpus_per_node": 8, "exclusive": False}, 1, 8, False, ""),
        ({"gpus": 2, "exclusive": True}, 1, 2, True, ""),
        ({"gpus": 16, "gpus_per_node": 8}, 2, 8, True, ""),
        ({"gpus": 6, "gpus_per_node": 4}, 2, 3, False, ""),
        ({"gpus": 4, "nodes": 2, "gpus_per_node": 4}, 2, 2, False, "4 GPUs fit on one node, but the job requests 2"),
        ({"gpus": 4, "nodes": 2}, 2, 2, False, "If one node of this cluster has 4 GPUs"),
        ({"gpus": 8, "nodes": 4, "gpus_per_node": 4}, 4, 2, False, "8 GPUs fit on 2 nodes"),
        ({"gpus": 4, "nodelist": "a,b", "gpus_per_node": 4}, 1, 4, True, "--nodelist names 2 nodes.*only a is"),
        ({"gpus": 4, "nodelist": "n[1-2]", "nodes": 2, "gpus_per_node": 4}, 2, 2, False, "use --nodes 1|Use --nodes 1"),
        ({"gpus": 4, "nodelist": "n[1-2]"}, 2, 2, False, "If one node of this cluster has 4 GPUs"),
        ({"gpus": 4, "nodelist": "n1"}, 1, 4, False, ""),
        ({"gpus": 1, "nodelist": "a,b"}, 1, 1, False, "1 GPU fits on one node, but --nodelist.*only a is requested"),
    ],
)
def test_layout(asked: dict[str, int], nodes: int, per_node: int, exclusive: bool, warning: str) -> None:
    request = SlurmRequest(**asked)  # type: ignore[arg-type]
    found = plan_layout(request, request.gpus, nodes=request.nodes)
    assert (found.nodes, found.per_node, found.exclusive) == (nodes, per_node, exclusive)
    assert bool(found.warnings) == bool(warning)
    if warning:
        with pytest.raises(AssertionError, match=warning):
            raise AssertionError(*found.warnings)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus": 0}, "--gpus is 0; it must be 1 or more"),
        ({"gpus": 6, "nodes": 4}, "--gpus is 6, which does not spread evenly over 4 nodes; use 4 or 8"),
        ({"gpus": 1, "nodes": 2}, "--gpus is 1, .*over 2 nodes; use 2"),
        ({"gpus": 16, "nodes": 1, "gpus_per_node": 8}, "16 on each, but --gpus_per_node says .* 8.*Use --nodes 2"),
        ({"gpus": 4, "nodes": 2, "nodelist": "n[1-3]"}, "--nodelist names 3 nodes, but --nodes is 2"),
        ({"gpus": 4, "cache_gpus": 0}, "--cache_gpus is 0"),
        ({"gpus": 4, "time": "soon"}, "--time is 'soon'; write it as"),
        ({"gpus": 4, "time": "3"}, "--time is 3, which is 180 s, and --warn_s is 120"),
        ({"gpus": 4, "warn_s": 0}, "--warn_s is 0"),
        ({"gpus": 4, "partition": "a b"}, "--partition is 'a b'; it must be one word"),
        ({"gpus": 4, "partition": "a\x1b"}, "--partition is .*; it must be one word"),
        ({"gpus": 4, "gpu_type": "a100:2"}, "--gpu_type is 'a100:2'; give only the name.*the number with --gpus"),
        ({"gpus": 4, "gpu_type": ""}, "--gpu_type is ''; it must be one word"),
        ({"gpus": 4, "mem": "lots"}, "--mem is 'lots'; write a number and K, M, G or T .*such as 64G"),
        ({"gpus": 4, "mem": "64 G"}, "--mem is '64 G'; it must be one word"),
        ({"gpus": 4, "setup_lines": ("a\nb",)}, "--setup_line contains a line break"),
        ({"gpus": 4, "sbatch_lines": ("--a\rb",)}, "--sbatch_line contains a line break"),
        ({"gpus": 4, "sbatch_lines": ("mail-type=END",)}, "--sbatch_line is 'mail-type=END'; .*as written after #SB"),
        ({"gpus": 4, "sbatch_lines": (" ",)}, "--sbatch_line is ' '"),
    ],
)
def test_invalid_requests(asked: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_jobs(TrainConfig(), SlurmRequest(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", ["wait", "continue"])
def test_slurm_ends_a_job_that_loses_a_node(choice: str) -> None:
    config = TrainConfig.model_validate({"on_machine_loss": choice})
    with pytest.raises(ConfigError, match=f"on_machine_loss is {choice}, but Slurm ends a job that loses one of its 2"):
        plan_jobs(config, SlurmRequest(4, nodes=2))
    assert plan_jobs(config, SlurmRequest(4, nodes=1))


def test_single_mode_with_several_gpus() -> None:
    with pytest.raises(ConfigError, match=r"training_mode is single, .* but 4 are requested"):
        plan_jobs(TrainConfig(training_mode="single"), SlurmRequest(4))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-0", 86_400), ("1-2:03:04", 93_784), ("unlimited", None)],
)
def test_time_limits(text: str, seconds: int | None) -> None:
    assert time_limit_s(text) == seconds


def test_whole_node_is_exclusive() -> None:
    request = SlurmRequest(8, gpus_per_node=8, gpu_type="a100", time="1-0", partition="gpu", cpus_per_gpu=6)
    text = script(request)
    asked = directives(text)
    assert {"nodes=1", "ntasks-per-node=8", "gres=gpu:a100:8", "cpus-per-task=6", "exclusive", "mem=0"} < set(asked)
    assert {"time=1-0", "partition=gpu", "requeue", "signal=USR1@120", "open-mode=append"} < set(asked)
    assert 'MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"' in text
    assert "--config /runs/x/config.json" in text
    assert "scontrol requeue" in text


HOSTILE = "x\ntouch /tmp/marker\n#"


@pytest.mark.parametrize("asked", [{"partition": HOSTILE}, {"sbatch_lines": (HOSTILE,)}, {"constraint": HOSTILE}])
def test_no_option_leaves_its_line(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"control character|must be one word|line break"):
        script(SlurmRequest(1, cpu=True, **asked))


def test_no_folder_leaves_its_line() -> None:
    with pytest.raises(ConfigError, match=r"contains the control character \\n"):
        script(SlurmRequest(1, cpu=True), folder=Path("/runs") / HOSTILE)


def test_each_start_of_a_job_makes_its_own_secret() -> None:
    lines = "\n".join(line for line in script(SlurmRequest(8)).splitlines() if "TANDEM_STORE_SECRET" in line)
    assert "TANDEM_STORE_SECRET" not in script(SlurmRequest(1))
    shown = [sys.executable, "-c", "import os; print(os.environ['TANDEM_STORE_SECRET'])"]
    made = [
        subprocess.run(
            ["bash", "-c", f"{lines}\n{shlex.join(shown)}"], capture_output=True, text=True, check=True, env=environment
        ).stdout.strip()
        for environment in (
            {"PATH": os.environ["PATH"]},
            *({"PATH": os.environ["PATH"], "TANDEM_STORE_SECRET": "f" * 32},) * 2,
        )
    ]
    assert len({*made, "f" * 32}) == 4, "also if sbatch has handed on the submitter's"
    assert all(re.fullmatch("[0-9a-f]{32}", secret) for secret in made)
    without_od = {"PATH": "", "TANDEM_STORE_SECRET": "f" * 32}
    bare = subprocess.run(
        [str(shutil.which("bash")), "-c", f"{lines}\necho started"], capture_output=True, text=True, env=without_od
    )
    assert bare.returncode != 0
    assert bare.stdout == ""
    assert "TANDEM_STORE_SECRET: is empty" in bare.stderr


def test_rendezvous_on_the_first_node() -> None:
    text = script(SlurmRequest(8, nodes=2), initial_port=20000)
    assert '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)' in text
    assert "$((20000 + SLURM_JOB_ID % 1000))" in text
    assert "--ntasks=8 --ntasks-per-node=4" in text
    assert "GLOO_SOCKET_IFNAME" not in text


def test_minimal_script() -> None:
    text = script(SlurmRequest(1, cpu=True, requeue=False))
    names = [line.split("=")[0] for line in directives(text)]
    assert names == [
        *("job-name", "nodes", "ntasks-per-node", "cpus-per-task"),
        *("no-requeue", "signal", "output", "open-mode"),
    ]
    assert "scontrol requeue" not in text
    assert "CUDA" not in text
    assert "MASTER_ADDR" not in text, "one process needs no rendezvous"


def test_separate_caching_job() -> None:
    config = TrainConfig(device_ids=(0, 1), num_nodes=2, master_addr="a")
    caching, training = plan_jobs(config, SlurmRequest(8, nodes=2, cache_gpus=2))
    assert (caching.layout.nodes, caching.layout.per_node) == (1, 2)
    assert (caching.config.cache_only, caching.config.world_size, caching.config.num_nodes) == (True, 2, 1)
    assert (training.config.cache_only, training.config.world_size, training.config.num_nodes) == (False, 8, 2)
    assert training.config.device_ids is None
    [only] = plan_jobs(TrainConfig(cache_only=True), SlurmRequest(1))
    assert only.purpose == "caching"
    assert TrainConfig.model_validate(training.config.model_dump()) == training.config, "the job can load it"


@pytest.mark.parametrize(
    ("asked", "caching", "training"),
    [
        ({"gpus": 4, "cache_gpus": 8, "gpus_per_node": 8}, (1, 8, True), (1, 4, False)),
        ({"gpus": 4, "cache_gpus": 8}, (1, 8, False), (1, 4, False)),
        ({"gpus": 4, "cache_gpus": 8, "nodes": 2}, (2, 4, False), (2, 2, False)),
        ({"gpus": 4, "cache_gpus": 16, "gpus_per_node": 8}, (2, 8, True), (1, 4, False)),
        ({"gpus": 8, "cache_gpus": 1, "nodelist": "a,b", "gpus_per_node": 4}, (1, 1, False), (2, 4, True)),
        ({"gpus": 4, "cache_gpus": 8, "nodelist": "a,b", "gpus_per_node": 4}, (2, 4, True), (1, 4, True)),
    ],
)
def test_the_caching_job_is_on_as_few_nodes_as_it_needs(
    asked: dict[str, Any], caching: tuple[int, int, bool], training: tuple[int, int, bool]
) -> None:
    layouts = [job.layout for job in plan_jobs(TrainConfig(), SlurmRequest(**asked))]
    assert [(each.nodes, each.per_node, each.exclusive) for each in layouts] == [caching, training]


@pytest.mark.parametrize(
    ("settings", "more", "said"),
    [
        ({"world_size": 8}, {}, "world_size has no effect: the job has 4 processes."),
        (
            {"processes_per_node": (2, 1)},
            {},
            "processes_per_node has no effect: the job has 4 processes, 4 on each node.",
        ),
        ({"max_restarts": 2}, {}, "max_restarts has no effect: only torchrun restarts processes"),
        ({"device_ids": (0,)}, {}, "device_ids has no effect: Slurm chooses the GPUs."),
        ({"cache_only": True}, {"cache_gpus": 2}, "--cache_gpus has no effect"),
        ({}, {"cpu": True, "gpu_type": "a100"}, "--gpu_type has no effect"),
        ({"world_size": 4, "processes_per_node": (4,)}, {}, ""),
    ],
)
def test_what_a_job_does_not_use_is_named(settings: dict[str, Any], more: dict[str, Any], said: str) -> None:
    config, request = TrainConfig().model_copy(update=settings), SlurmRequest(4, **more)
    found = warnings_of(config, plan_jobs(config, request), request)
    assert [sentence[: len(said)] for sentence in found] == ([said] if said else [])


@pytest.mark.skipif(sys.platform == "win32", reason="batch scripts are for bash")
@pytest.mark.parametrize("requeue", [True, False])
def test_cancelled_job_names_the_command_that_continues_it(tmp_path: Path, requeue: bool) -> None:
    """After scancel, when scontrol tells of no preemption and the training has ended with 143."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, body in {"srun": "exit 143", "scontrol": "echo PreemptTime=None"}.items():
        (commands / name).write_text(f"#!/bin/sh\n{body}\n")
        (commands / name).chmod(0o755)
    folder = tmp_path / "runs" / "x"
    text = script(SlurmRequest(1, cpu=True, requeue=requeue), folder=folder).replace("cd /work ", f"cd '{tmp_path}' ")
    environ = {"PATH": f"{commands}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "1"}
    done = subprocess.run(["bash", "-c", text], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 143, done.stderr
    assert f"Continue it with:  sbatch {folder}/slurm.sh" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="batch scripts are for bash")
@pytest.mark.parametrize(
    "request_", [SlurmRequest(4), SlurmRequest(2, cpu=True, requeue=False), SlurmRequest(8, nodes=2)]
)
def test_bash_passes_arguments_to_srun(request_: SlurmRequest, tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s a "dir" $(100%)'
    odd.mkdir()
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, body in {
        "srun": f'for word; do echo "$word"; done > {shlex.quote(str(tmp_path / "words"))}; exit 138',
        "scontrol": 'echo "scontrol $*"',
    }.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    [job] = plan_jobs(TrainConfig(), request_)
    file = tmp_path / "script.sh"
    file.write_text(render(job, request_, RunFolder(odd / "x"), odd, python=str(odd / "python")))
    environ = {
        "PATH": f"{commands}:/usr/bin:/bin",
        "SLURM_JOB_ID": "1042",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_CPUS_PER_TASK": "3",
    }
    done = subprocess.run(["bash", str(file)], env=environ, capture_output=True, text=True, check=False)
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--config") + 1] == str(odd / "x" / "config.json")
    assert words[words.index("--export=ALL") + 1] == str(odd / "python")
    assert words[-4:] == ["--run_name", "x", "--resume", "latest"]
    assert done.returncode == (0 if request_.requeue else 138), done.stderr
    assert ("scontrol requeue 1042" in done.stdout) == request_.requeue
    assert done.stderr == "" if request_.requeue else "Continue it with:  sbatch" in done.stderr


def fake_sbatch(folder: Path, said: str) -> dict[str, str]:
    (folder / "sbatch").write_text(f"#!/bin/sh\necho {shlex.quote(said)} >&2\nexit 1\n")
    (folder / "sbatch").chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Batch job submission failed: Invalid partition name specified", "Choose another --partition"),
        (
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "another --account",
        ),
        ("Batch job submission failed: Invalid qos specification", "--qos"),
        ("Invalid generic resource (gres) specification", "--cpu requests none"),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", "less --time"),
        ("Batch job submission failed: Invalid node name specified", "Correct --nodelist"),
        ("Memory specification can not be satisfied", "less --mem"),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("resolve_ctls_from_dns_srv: no SRV records; Could not establish a configuration source", "scontrol ping"),
        ("Batch job submission failed: Requested node configuration is not available", "No node has all of that"),
        ("something new", "sinfo"),
    ],
)
def test_sbatch_errors_are_explained(said: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(SubmitError) as caught:
        submit(tmp_path / "x.sh", environ=fake_sbatch(tmp_path, f"sbatch: error: {said}"))
    assert f"sbatch rejected the job: {said}" in str(caught.value)
    assert advice in str(caught.value)


def test_missing_sbatch(tmp_path: Path) -> None:
    with pytest.raises(SubmitError, match=r"no command sbatch on this computer.*--dry_run"):
        submit(tmp_path / "x.sh", environ={"PATH": str(tmp_path)})
