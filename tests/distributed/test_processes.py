"""Groups of real gloo processes: joining, agreeing, meeting, and losing one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config import TrainingError
from modules.distributed import OwnAgreement, launch_distributed, resolve_backend, spawn
from modules.machine import hostname
from tests.distributed import rank_programs
from tests.ports import free_port

pytestmark = pytest.mark.slow


def told(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"rank-{rank}.json").read_text())
    return found


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("agreed")
    spawn(rank_programs.agreeing, 2, free_port(), (folder,))
    return [told(folder, rank) for rank in range(2)]


def test_a_users_own_train_function_runs_in_a_group(tmp_path: Path) -> None:
    launch_distributed(rank_programs.users_own, 2, "nccl", folder=tmp_path, factor=1.5)
    for rank in (0, 1):
        assert told(tmp_path, rank) == {"world": 2, "total": 4.5, "environment": str(rank)}


def test_a_users_mistake_ends_all_and_names_the_rank(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"rank 1 failed(.|\n)*my own mistake"):
        launch_distributed(rank_programs.users_mistake, 2, "gloo", folder=tmp_path)


def test_positional_arguments_reach_the_train_function(tmp_path: Path) -> None:
    launch_distributed(rank_programs.users_own, 1, "gloo", tmp_path, 2.0)
    assert told(tmp_path, 0)["total"] == 2.0


def test_every_rank_reads_the_same_sums_one_exchange_late(agreed: list[dict[str, Any]]) -> None:
    expected = [{"stop": 0, "loss": 0}, {"stop": 1, "loss": 0.75}, {"stop": 0, "loss": 2}, {"stop": 0, "loss": 0}]
    assert agreed[0]["agreed"] == agreed[1]["agreed"] == expected


def test_a_slow_leader_whose_heart_beats_is_waited_for(agreed: list[dict[str, Any]]) -> None:
    assert agreed[1]["leader_first"] is True
    assert agreed[1]["looks"] > 0


def test_who_waits_for_whom_is_told(agreed: list[dict[str, Any]]) -> None:
    (row,) = agreed[0]["waited"]
    assert (row["rank"], row["for"], row["in"]) == (1, [0], "rank 0 (slow)")
    assert "rank_programs.py" in row["at"]["0"]
    assert agreed[0]["noted"][0].startswith("Rank 1 has waited ")


def test_every_rank_hears_what_every_rank_tells(agreed: list[dict[str, Any]]) -> None:
    assert [facts["gathered"] for facts in agreed] == [["rank 0", "rank 1"]] * 2


def test_what_one_rank_calls_off_all_know(agreed: list[dict[str, Any]]) -> None:
    assert [facts["called_off"] for facts in agreed] == ["stopped", "stopped"]
    assert [facts["too_late"] for facts in agreed] == [False, False]


def test_the_group_is_left_and_leaving_twice_does_no_harm(agreed: list[dict[str, Any]]) -> None:
    assert all(facts["left"] for facts in agreed)
    assert all(facts["device"] == "cpu" and facts["backend"] == "gloo" for facts in agreed)


def test_a_group_that_does_not_form_names_the_address(agreed: list[dict[str, Any]]) -> None:
    for facts in agreed:
        assert "Not all processes came within 1 s: rank 0 at 127.0.0.1:" in facts["alone"]
        assert f"did not come (nothing listens there yet); here: rank 1 on {hostname()}" in facts["alone"]


def test_a_killed_peer_is_noticed_and_the_launcher_names_it(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="rank 1 ended with exit code -9"):
        spawn(rank_programs.left_alone, 2, free_port(), (tmp_path,))
    said = told(tmp_path, 0)["said"]
    assert "rank 0 waited for rank 1 (caching), but The process of rank 1" in said
    assert "has ended in the middle of the run" in said


def test_a_leader_that_does_nothing_at_all_is_told_and_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="rank 0 ended with exit code 3"):
        spawn(rank_programs.frozen, 2, free_port(), (tmp_path,))
    said = told(tmp_path, 1)["said"]
    assert "rank 1 waited for rank 0 (saving), but Rank 0 on " in said
    assert "and has not gone on for" in said


def test_one_process_agrees_with_itself_one_exchange_late_too() -> None:
    agreement = OwnAgreement(["stop", "loss"])
    assert agreement.exchange({"stop": 1.0}) == {"stop": 0.0, "loss": 0.0}
    assert agreement.exchange({}) == {"stop": 1.0, "loss": 0.0}
    assert agreement.settle() == {"stop": 0.0, "loss": 0.0}


def test_a_backend_that_cannot_work_here_is_replaced_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    backend, reason = resolve_backend("nccl")
    assert backend == "gloo"
    assert "no CUDA device" in reason
    assert resolve_backend("gloo") == ("gloo", "")
