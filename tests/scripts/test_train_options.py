"""What the command line of scripts/train.py refuses in a rank of another program's group."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from modules.config import ConfigError, TrainConfig
from modules.run.launch.rank_env import RankEnv
from scripts import preflight
from scripts.train_options import check_rank, parser


@pytest.mark.parametrize("flag", ["--local-rank=1", "--local_rank=1"])
@pytest.mark.parametrize("program", [parser, preflight.parser])
def test_the_option_of_torch_distributed_launch_is_accepted(
    program: Callable[[], argparse.ArgumentParser], flag: str
) -> None:
    assert program().parse_args(["--config", "demo", flag]).local_rank == 1


@pytest.mark.parametrize(
    ("flag", "size", "said"),
    [
        ("--require_multi_gpu", 1, "torchrun has started one process"),
        ("--verify_parity", 2, "--verify_parity starts the processes that it compares itself"),
        ("--hosts=beta", 2, "--hosts is for machine 0"),
    ],
)
def test_a_rank_refuses_what_only_the_start_of_a_group_can_do(flag: str, size: int, said: str) -> None:
    options = parser().parse_args(["--config", "demo", flag])
    check_rank(TrainConfig(), options, None)
    with pytest.raises(ConfigError, match=said):
        check_rank(TrainConfig(), options, RankEnv(0, 0, size, "127.0.0.1", 12355))
