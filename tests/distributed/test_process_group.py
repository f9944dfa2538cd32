"""Groups of real gloo processes: joining, reducing, waiting for each other, and losing a rank."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.config import TrainingError
from modules.distributed import launch_distributed, resolve_backend, shared_memory
from modules.distributed.process_group import _connection_error
from modules.distributed.rank_group import SingleProcess
from modules.distributed.startup.member import Member
from modules.machine import Route, hostname
from modules.run.launch.rank_env import RankEnv
from tests.distributed import process_group_programs
from tests.ports import free_port
from tests.runs import in_ranks, run_command

pytestmark = pytest.mark.slow


def result_of(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"rank-{rank}.json").read_text())
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("results")
    in_ranks(process_group_programs.all_primitives, 2, free_port(), (folder,))
    return [result_of(folder, rank) for rank in range(2)]


def test_a_user_function_runs_in_a_group_with_a_slice_of_a_gpu_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    launch_distributed(process_group_programs.user_function, 2, "nccl", tmp_path, factor=1.5)
    for rank, own_slice in enumerate(("MIG-a", "MIG-b")):
        environment = {"LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": own_slice}
        assert result_of(tmp_path, rank) == {"world": 2, "total": 4.5, "environment": environment}


def test_a_user_error_ends_all_and_names_the_rank(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"rank 1 failed(.|\n)*my own mistake"):
        launch_distributed(process_group_programs.user_error, 2, "gloo", folder=tmp_path)


def test_every_rank_reads_the_same_sums_one_call_late(results: list[dict[str, Any]]) -> None:
    expected = [{"stop": 0, "loss": 0}, {"stop": 1, "loss": 0.75}, {"stop": 0, "loss": 2}, {"stop": 0, "loss": 0}]
    assert results[0]["sums"] == results[1]["sums"] == expected


def test_a_slow_rank_0_that_sends_heartbeats_is_waited_for(results: list[dict[str, Any]]) -> None:
    assert results[1]["rank0_first"] is True
    assert results[1]["polls"] > 0


def test_waiting_ranks_are_reported(results: list[dict[str, Any]]) -> None:
    (row,) = results[0]["waited"]
    assert (row["rank"], row["for"], row["in"]) == (1, [0], "rank 0 (slow)")
    assert "process_group_programs.py" in row["at"]["0"]
    assert results[0]["noted"][0].startswith("Rank 1 has waited ")


def test_gather_returns_every_ranks_text(results: list[dict[str, Any]]) -> None:
    assert [result["gathered"] for result in results] == [["rank 0", "rank 1"]] * 2


def test_a_cancelled_barrier_is_cancelled_for_all(results: list[dict[str, Any]]) -> None:
    assert [result["cancelled"] for result in results] == ["stopped", "stopped"]
    assert [result["too_late"] for result in results] == [False, False]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each rank has memory of its own")
def test_memory_that_the_first_rank_fills_is_there_once(results: list[dict[str, Any]]) -> None:
    first, second = (result["memory"] for result in results)
    assert (first["filled"], second["filled"]) == ([0], [])
    assert first["mapping"] == second["mapping"]  # inode and name
    assert first["mapping"][1] == "/memfd:tandem (deleted)"  # no file, whichever process is killed
    assert first["right"]
    assert second["right"]
    assert (first["after"], second["after"]) == ([0, 1, 2], [7, 7, 7]), "a write stays with who wrote"


def test_what_is_not_the_announced_memory_is_not_used(tmp_path: Path) -> None:
    assert shared_memory._open(shared_memory._Announcement(), 5) is None
    with (tmp_path / "other").open("w+b") as other:
        other.write(bytes(256 + 5))
        other.flush()
        announced = shared_memory._Announcement(process_id=os.getpid(), descriptor=other.fileno(), token="a" * 32)
        assert shared_memory._open(announced, 5) is None
        assert shared_memory._open(announced, 6) is None


def test_cleanup_may_be_called_twice(results: list[dict[str, Any]]) -> None:
    assert all(result["left"] for result in results)
    assert all(result["device"] == "cpu" and result["backend"] == "gloo" for result in results)


def test_a_group_that_does_not_form_names_the_address(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "Not all processes joined within 1 s: rank 0 at 127.0.0.1:" in result["never_formed"]
        assert f"did not join (nothing listens there yet); present: rank 1 on {hostname()}" in result["never_formed"]


def test_a_killed_peer_is_noticed_and_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="rank 1 ended with exit code -9"):
        in_ranks(process_group_programs.peer_killed, 2, free_port(), (tmp_path,))
    error = result_of(tmp_path, 0)["error"]
    assert "rank 0 waited for rank 1 (caching), but The process of rank 1" in error
    assert "exited during the run" in error


def test_a_frozen_rank_0_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="rank 0 ended with exit code 3"):
        in_ranks(process_group_programs.frozen, 2, free_port(), (tmp_path,))
    error = result_of(tmp_path, 1)["error"]
    assert "rank 1 waited for rank 0 (saving), but Rank 0 on " in error
    assert "and has made no progress for" in error


@pytest.mark.parametrize(("how", "code"), [("as a worker", 3), ("as a program", 1)])
def test_a_failing_rank_does_not_wait_for_a_group_that_cannot_be_destroyed(how: str, code: int) -> None:
    program = f"from tests.distributed.process_group_programs import failing_rank; failing_rank({how!r})"
    done = run_command([sys.executable, "-c", program])
    assert done.returncode == code
    assert "my own mistake" in done.stdout + done.stderr


def test_a_single_process_reads_its_values_one_call_late() -> None:
    alone = SingleProcess(["stop", "loss"])
    assert alone.sync_metrics({"stop": 1.0}) == {"stop": 0.0, "loss": 0.0}
    assert alone.sync_metrics({}) == {"stop": 1.0, "loss": 0.0}
    assert alone.sync_metrics({}) == {"stop": 0.0, "loss": 0.0}


def test_an_unavailable_backend_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    backend, reason = resolve_backend("nccl")
    assert backend == "gloo"
    assert "no CUDA device" in reason
    assert resolve_backend("gloo") == ("gloo", "")


def test_the_machine_whose_address_is_of_another_network_is_the_one_that_is_named() -> None:
    alpha = Member(0, 0, "alpha", 1, None, None, "a", "10.8.0.5")  # as its default route, a VPN, says
    beta = Member(1, 0, "beta", 2, None, None, "b", "10.77.0.2")
    failure = RuntimeError("connect: Network is unreachable")
    error = _connection_error(RankEnv(1, 0, 2, "10.77.0.1", 1), (alpha, beta), "gloo", failure)
    assert error.advice.startswith("alpha uses the network of its address 10.8.0.5, but from ")
    assert "start it with --set master_addr=10.77.0.1" in error.advice
    gamma = Member(2, 0, "gamma", 3, None, None, "c", "10.8.0.6")  # which reaches alpha at 10.8.0.5
    of_three = _connection_error(RankEnv(1, 0, 3, "10.77.0.1", 1), (alpha, beta, gamma), "gloo", failure)
    assert "it is reached at 10.77.0.1, and every machine must reach every other" in of_three.advice
    assert "master_addr=10.77.0.1" not in of_three.advice
    right = _connection_error(RankEnv(1, 0, 2, "10.8.0.5", 1), (alpha, beta), "gloo", failure)
    assert right.advice.startswith("Check that each machine uses the network interface")


def test_gpus_of_one_machine_that_cannot_talk_get_no_advice_on_networks() -> None:
    everyone = tuple(Member(rank, rank, "alpha", 1 + rank, None, None, "a", "127.0.0.1") for rank in range(2))
    error = _connection_error(RankEnv(0, 0, 2, "127.0.0.1", 1), everyone, "nccl", RuntimeError("NCCL error: timeout"))
    assert error.advice.startswith("Between the GPUs of one machine set NCCL_P2P_DISABLE=1")
    assert "firewall" not in error.advice


def test_a_wrong_interface_is_named_with_the_machine_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    route = Route("eth0", "10.77.0.2")
    monkeypatch.setattr("modules.distributed.startup.member.route_to_master", lambda master: route)
    there = RankEnv(1, 0, 2, "10.77.0.1", 1)
    own = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert not Member.of_this_process(there, own).other_interfaces
    wrong = Member.of_this_process(there, own | {"GLOO_SOCKET_IFNAME": "tun0"})
    everyone = Member(0, 0, "alpha", 1, None, None, "a", "10.77.0.1"), replace(wrong, host="beta")
    error = _connection_error(RankEnv(0, 0, 2, "10.77.0.1", 1), everyone, "gloo", RuntimeError("timed out"))
    assert error.advice.endswith("on beta, GLOO_SOCKET_IFNAME is tun0, but eth0 leads to 10.77.0.1. Unset it there.")
