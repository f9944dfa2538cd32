"""Samples drawn by all ranks are those that rank 0 draws alone, and nothing else of the run changes."""

from __future__ import annotations

import pytest

from tests.runs import Run, group_exit_codes, same_state

pytestmark = pytest.mark.slow


def test_the_pictures_are_the_same_files(pair: dict[str, Run]) -> None:
    one, everyone = (sorted(pair[name].folder.samples_dir.iterdir()) for name in ("samples of one", "samples of all"))
    assert [file.name for file in one] == [file.name for file in everyone]
    assert len(one) == 2 * 6, "five samples and a grid, at step 2 and at the end"
    assert len({file.read_bytes() for file in one}) == len(one)
    for first, second in zip(one, everyone, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_the_ranks_have_shared_the_work_and_go_on_as_before(pair: dict[str, Run]) -> None:
    one, everyone = (pair[name] for name in ("samples of one", "samples of all"))
    assert same_state(one.state, everyone.state)
    assert one.losses == everyone.losses
    told = [event["total"] for event in everyone.events("phase") if event["phase"] == "sampling"]
    assert set(told) == {3}, "rank 0 draws three of five"


def test_a_rank_that_cannot_draw_ends_the_run_and_is_told(pair: dict[str, Run]) -> None:
    run = pair["a sample fails"]
    assert group_exit_codes(run, 2) == [3, 3]
    assert "this prompt cannot be drawn" in run.failure(1)
    assert "rank 0 waited for rank 1 (sampling), but" in run.failure(0)
