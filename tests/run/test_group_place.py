"""Which process this is, as launchers say it in the environment."""

from __future__ import annotations

import pytest

from modules.config import ConfigError
from modules.distributed import Place, place_from_environment


def test_a_plain_start_has_no_place() -> None:
    assert place_from_environment({}) is None
    assert place_from_environment({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None


def test_the_script_of_an_sbatch_job_is_no_step_of_it() -> None:
    assert place_from_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None


def test_torchrun_gives_everything() -> None:
    given = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29400"}
    assert place_from_environment(given) == Place(3, 1, 4, "node0", 29400)
    assert Place(3, 1, 4, "node0", 29400).environment() == given


def test_without_a_local_rank_the_rank_counts() -> None:
    assert place_from_environment({"RANK": "1", "WORLD_SIZE": "2"}, 5000) == Place(1, 1, 2, "127.0.0.1", 5000)


def test_srun_gives_the_same_facts_under_other_names() -> None:
    given = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
    assert place_from_environment(given) == Place(5, 1, 8, "127.0.0.1", 12355)
    many = {**given, "SLURM_NNODES": "2", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    assert place_from_environment(many, 13000) == Place(5, 1, 8, "10.0.0.7", 13000)
    assert place_from_environment({**many, "MASTER_ADDR": "node1"}) == Place(5, 1, 8, "node1", 12355)


def test_torchrun_inside_an_allocation_wins_over_slurm() -> None:
    given = {"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "7", "SLURM_NTASKS": "16"}
    found = place_from_environment(given)
    assert found is not None
    assert (found.rank, found.world_size) == (0, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
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
def test_an_odd_environment_gets_a_sentence(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place_from_environment(given)
    assert said in str(caught.value)
