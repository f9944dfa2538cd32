"""Rank and world size from the variables of the launchers."""

from __future__ import annotations

import pytest

from modules.config import ConfigError, TrainConfig
from modules.distributed import RankEnv, read_rank_env
from modules.run.launch.rank_env import launch_notes, launched_rank_env, started_by_hand, use_own_slice, without_rank


def test_plain_start_has_no_rank_env() -> None:
    assert read_rank_env({}) is None
    assert read_rank_env({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None


def test_sbatch_script_is_not_a_step() -> None:
    assert read_rank_env({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None


def test_torchrun_variables() -> None:
    given = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29400"}
    assert read_rank_env(given) == RankEnv(3, 1, 4, "node0", 29400)
    assert RankEnv(3, 1, 4, "node0", 29400).environment() == given


@pytest.mark.parametrize(
    ("visible", "own"),
    [
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
        ("MIG-a, MIG-b", ["MIG-a", "MIG-b"]),
        ("GPU-x,MIG-b", ["GPU-x", "MIG-b"]),
        ("MIG-a", ["MIG-a", "MIG-a"]),
        ("1,0", ["1,0", "1,0"]),
        (None, [None, None]),
    ],
)
def test_each_rank_has_its_own_slice_of_a_gpu(visible: str | None, own: list[str | None]) -> None:
    for rank in (0, 1):
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        for _ in range(2):  # by the launcher and by the process itself
            use_own_slice(environ, RankEnv(2 + rank, rank, 4, "node0", 29400))
            assert environ.get("CUDA_VISIBLE_DEVICES") == own[rank]


def test_local_rank_defaults_to_rank() -> None:
    assert read_rank_env({"RANK": "1", "WORLD_SIZE": "2"}, 5000) == RankEnv(1, 1, 2, "127.0.0.1", 5000)


def test_srun_variables() -> None:
    given = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
    assert read_rank_env(given) == RankEnv(5, 1, 8, "127.0.0.1", 12355)
    many = {**given, "SLURM_NNODES": "2", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    assert read_rank_env(many, 13000) == RankEnv(5, 1, 8, "10.0.0.7", 13000)
    assert read_rank_env({**many, "MASTER_ADDR": "node1"}) == RankEnv(5, 1, 8, "node1", 12355)


def test_torchrun_takes_precedence_over_slurm() -> None:
    given = {"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "7", "SLURM_NTASKS": "16"}
    found = read_rank_env(given)
    assert found is not None
    assert (found.rank, found.world_size) == (0, 2)


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_mpirun_starts_ranks_as_torchrun_does() -> None:
    assert read_rank_env({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}) == RankEnv(1, 1, 4, "127.0.0.1", 12355)
    assert read_rank_env({**MPICH, "MASTER_ADDR": "node0"}, 13000) == RankEnv(3, 1, 4, "node0", 13000)
    cray = {"PMI_RANK": "3", "PMI_SIZE": "4", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "MASTER_ADDR": "node0"}
    assert read_rank_env(cray) == RankEnv(3, 1, 4, "node0", 12355)
    mvapich = {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "1"}
    assert read_rank_env(mvapich) == RankEnv(1, 1, 2, "127.0.0.1", 12355)
    assert read_rank_env({**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "2"}) == RankEnv(0, 0, 2, "127.0.0.1", 12355)
    assert read_rank_env({"PMI_RANK": "0", "PMI_SIZE": "1"}) is None
    assert without_rank(OPEN_MPI | MPICH).keys().isdisjoint({"OMPI_COMM_WORLD_RANK", "PMI_RANK"})


def test_in_a_job_of_slurm_mpirun_or_srun_is_recognised() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    by_mpirun = {**MPICH, **step, "MASTER_ADDR": "node0"}  # whose one task on each node starts two processes
    assert read_rank_env(by_mpirun) == RankEnv(3, 1, 4, "node0", 12355)
    by_srun = {**step, "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert read_rank_env(by_srun) == RankEnv(1, 0, 2, "127.0.0.1", 12355)


def test_the_variables_of_mpirun_are_named_once() -> None:
    first = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    note = started_by_hand(first, RankEnv(0, 0, 4, "127.0.0.1", 1))
    assert "OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=4" in note
    assert "waits for 3 more that mpirun starts" in note
    assert started_by_hand(OPEN_MPI, RankEnv(1, 1, 4, "127.0.0.1", 1)) == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (MPICH, "PMI_SIZE=4 and MPI_LOCALNRANKS=2: mpirun has started processes on several machines, but MASTER_ADDR"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE is 'x'"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'"),
        ({"RANK": "1"}, "RANK is set in the environment (1), but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set in the environment (2), but RANK is not"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "rank 5 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": ""}, "MASTER_PORT is ''"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}, "MASTER_PORT is 70000; it must be from 1 to 65535"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "LOCAL_RANK is -1; it must be 0 or more"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2(x3)"}, "SLURM_NTASKS"),
    ],
)
def test_invalid_environments_are_explained(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_rank_env(given)
    assert said in str(caught.value)


def test_variables_that_no_launcher_has_set_are_named_at_once() -> None:
    left_over = {"RANK": "0", "WORLD_SIZE": "2"}
    rank_env = read_rank_env(left_over)
    assert rank_env is not None
    note = started_by_hand(left_over, rank_env)
    assert "RANK=0 and WORLD_SIZE=2" in note
    assert "waits for 1 more" in note
    assert "unset both" in note
    assert started_by_hand({**left_over, "TORCHELASTIC_RUN_ID": "none"}, rank_env) == ""


def test_a_group_of_one_that_torchrun_has_not_formed_is_none() -> None:
    pod = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    assert launched_rank_env(pod) is None  # as a PyTorchJob of one replica has it: what was asked for is started
    assert launched_rank_env({**pod, "TORCHELASTIC_RUN_ID": "none"}) == RankEnv(0, 0, 1, "localhost", 29511)
    assert launched_rank_env({**pod, "WORLD_SIZE": "2"}) == read_rank_env({**pod, "WORLD_SIZE": "2"})
    assert without_rank({**pod, "SLURM_PROCID": "0", "HOME": "/root"}) == {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29511",
        "HOME": "/root",
    }


def test_a_shell_in_a_step_of_several_tasks_is_told_of_slurms_variables() -> None:
    shell = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    rank_env = read_rank_env(shell)
    assert rank_env is not None
    note = started_by_hand(shell, rank_env)
    assert "SLURM_PROCID=0 and SLURM_STEP_NUM_TASKS=2 are set" in note
    assert "unset SLURM_PROCID" in note
    assert started_by_hand(shell, RankEnv(1, 1, 2, "127.0.0.1", 1)) == ""  # once is enough


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"world_size": 4}, "world_size=4 has no effect: torchrun says 2"),
        ({"processes_per_node": (4,)}, "processes_per_node=(4,) has no effect: torchrun says 2"),
        ({"num_nodes": 2}, "num_nodes=2 has no effect: torchrun says 1"),
        ({"training_mode": "single"}, "training_mode=single has no effect: torchrun says 2 processes"),
        ({"on_machine_loss": "continue"}, ""),
        ({"max_restarts": 3}, "max_restarts=3 has no effect: what counts is torchrun's --max-restarts"),
        ({"device_ids": (2, 3)}, "device_ids=(2, 3) has no effect: set CUDA_VISIBLE_DEVICES for torchrun instead"),
        ({"world_size": 2, "processes_per_node": (2,)}, ""),
    ],
)
def test_settings_that_the_launcher_has_decided_otherwise_are_named(settings: dict[str, object], said: str) -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_MAX_RESTARTS": "0"}
    config = TrainConfig().model_copy(update=settings)
    notes = launch_notes(config, RankEnv(0, 0, 2, "127.0.0.1", 1), torchrun)
    assert notes == ([f"Note: {said}."] if said else [])
    assert launch_notes(config, RankEnv(1, 1, 2, "127.0.0.1", 1), torchrun) == []


def test_machines_that_torchrun_starts_end_together() -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "0"}
    config = TrainConfig().model_copy(update={"num_nodes": 2, "on_machine_loss": "continue"})
    (note,) = launch_notes(config, RankEnv(0, 0, 2, "127.0.0.1", 1), torchrun)
    assert note.startswith("Note: on_machine_loss=continue has no effect: machines that torchrun starts end together")
