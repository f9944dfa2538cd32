"""Parsing Slurm's variables; the values are those set by Slurm 22.05."""

from __future__ import annotations

import pytest

from modules.config import ConfigError
from modules.run.launch.rank_env import RankEnv, read_rank_env
from modules.run.launch.slurm_environment import (
    check_gpus_of_step,
    expand_nodes,
    port_of_job,
    started_by_srun,
    tasks_on_node,
)

TWO_NODES = {
    "SLURM_JOB_ID": "1042",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
}


def test_task_on_several_nodes() -> None:
    assert read_rank_env(TWO_NODES, 12000) == RankEnv(5, 1, 8, "gpu07", 12042)
    given = {**TWO_NODES, "MASTER_ADDR": "gpu07-ib", "MASTER_PORT": "4000"}
    assert read_rank_env(given) == RankEnv(5, 1, 8, "gpu07-ib", 4000)


def test_step_smaller_than_its_job() -> None:
    one_node = {**TWO_NODES, "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4"}
    one_node |= {"SLURM_PROCID": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NTASKS": "8"}
    assert read_rank_env(one_node, 12000) == RankEnv(1, 1, 4, "127.0.0.1", 12042)


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # the script of sbatch
        {**TWO_NODES, "SLURM_STEP_ID": "4294967290"},  # salloc's shell, with LaunchParameters=use_interactive_step
        {**TWO_NODES, "SLURM_STEP_ID": "4294967291"},  # the batch step, as some plugins name it
        {**TWO_NODES, "SLURM_STEP_NUM_TASKS": "1"},  # srun --ntasks=1 in a job of eight
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "gpu07"},  # salloc's shell
    ],
)
def test_plain_start_inside_a_job(environ: dict[str, str]) -> None:
    assert not started_by_srun(environ)
    assert read_rank_env(environ) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"SLURM_LOCALID": "4"}, "SLURM_LOCALID is 4, but 4 tasks of this step run on this node"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID is 2, but the step runs on 2 nodes"),
        ({"SLURM_LOCALID": None}, "SLURM_LOCALID is missing"),
        ({"SLURM_PROCID": "8"}, "rank 8 of 8"),
        ({"SLURM_STEP_TASKS_PER_NODE": "four"}, "SLURM_STEP_TASKS_PER_NODE is 'four'"),
        ({"SLURM_STEP_NODELIST": "gpu[07-"}, "not a list of nodes"),
        ({"SLURM_STEP_NODELIST": None, "SLURM_LAUNCH_NODE_IPADDR": None}, "neither MASTER_ADDR nor SLURM_JOB_NODELIST"),
        ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID is 'x'"),
    ],
)
def test_inconsistent_environments(change: dict[str, str | None], said: str) -> None:
    changed = {name: value for name, value in {**TWO_NODES, **change}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        read_rank_env(changed)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("a,b-2", ["a", "b-2"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("rack[1-2]n[09-10]x", ["rack1n09x", "rack1n10x", "rack2n09x", "rack2n10x"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


ENDLESS = ["n[1-999999999]", "n[1-999][1-999]", "n[1-40000,1-40000]", f"n[{'9' * 5000}]"]


@pytest.mark.parametrize("text", ["n[1-", "n1]", "n[a-b]", "n[]", "a b", "n[1--3]", "n[[1]]", "n[9-1]", *ENDLESS])
def test_invalid_node_lists(text: str) -> None:
    with pytest.raises(ConfigError, match="not a list of nodes"):
        expand_nodes(text)


def test_tasks_on_this_node() -> None:
    uneven = {"SLURM_STEP_TASKS_PER_NODE": "4(x2),1"}
    assert [tasks_on_node({**uneven, "SLURM_NODEID": node}) for node in "012"] == [4, 4, 1]
    assert tasks_on_node({}) is None


def test_port_depends_on_the_job() -> None:
    ports = {port_of_job({"SLURM_JOB_ID": str(job)}, 12355) for job in range(700, 1700)}
    assert len(ports) == 1000
    assert max(port_of_job({"SLURM_JOB_ID": str(job)}, 65_535) for job in range(1000)) == 65_535
    assert port_of_job({}, 12355) == 12355


def test_mismatch_of_gpus_and_tasks() -> None:
    on_node = {**TWO_NODES, "SLURMD_NODENAME": "gpu08"}
    assert check_gpus_of_step({**on_node, "SLURM_GPUS_ON_NODE": "4"}, "nccl") == ""
    assert check_gpus_of_step(on_node, "nccl") == "", "Slurm does not manage GPUs"
    assert "8 GPUs on gpu08, but 4 tasks" in check_gpus_of_step({**on_node, "SLURM_GPUS_ON_NODE": "8"}, "nccl")
    with pytest.raises(ConfigError, match=r"4 tasks run on gpu08, but the job has 2 GPUs.*--ntasks-per-node=2"):
        check_gpus_of_step({**on_node, "SLURM_GPUS_ON_NODE": "2"}, "nccl")
    assert check_gpus_of_step({**on_node, "SLURM_GPUS_ON_NODE": "2"}, "gloo") == "", "gloo lets ranks share"
    assert check_gpus_of_step({"SLURM_GPUS_ON_NODE": "2"}, "nccl") == "", "not a step of srun"
