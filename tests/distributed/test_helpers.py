"""What a training function of one's own needs, in a single process; docs/library.md is tested in tests/library."""

from __future__ import annotations

import time

import pytest

from modules.distributed import GroupError, is_main_process, main_process_first, mean_over_ranks, setup_distributed


def test_a_single_process_is_the_main_process() -> None:
    done: list[float] = []
    main_process_first(lambda: done.append(time.time()))
    assert len(done) == 1
    assert is_main_process()
    assert mean_over_ranks(2.5, weight=3) == 2.5
    with pytest.raises(ValueError, match="no rank gave a weight above 0"):
        mean_over_ranks(1.0, weight=0)


def test_setup_without_a_launcher_explains_how_to_start() -> None:
    with pytest.raises(GroupError, match="neither RANK and WORLD_SIZE nor srun's variables are set"):
        setup_distributed()
