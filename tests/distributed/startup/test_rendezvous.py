"""Rendezvous: missing ranks are named, also while waiting, and keys left by a previous start are ignored."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from modules.distributed import GroupError, RankEnv
from modules.distributed.health.heartbeat_monitor import HeartbeatMonitor
from modules.distributed.startup import rendezvous
from modules.distributed.startup.member import (
    Member,
    MissingRanks,
    disambiguate_hosts,
    find_missing_ranks,
    ranks_by_host,
)
from modules.distributed.startup.store import open_store
from modules.machine import hostname
from tests.distributed.startup import rendezvous_programs
from tests.ports import free_port
from tests.runs import in_ranks


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("rendezvous")
    ports = [free_port() for _ in range(4)]
    in_ranks(rendezvous_programs.run_all, 2, ports[0], (ports[1:], folder))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_missing_ranks_are_logged_while_waiting(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["said"][0].startswith("Waiting for rank 1")
    assert f"present: rank 0 on {hostname()}." in facts[0]["said"][0]


@pytest.mark.slow
def test_every_rank_knows_all_members(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["members"] == facts[1]["members"]
    assert [row[:2] for row in facts[0]["members"]] == [[0, hostname()], [1, hostname()]]
    assert len({row[2] for row in facts[0]["members"]}) == 2


@pytest.mark.slow
def test_missing_ranks_are_named_with_their_machine(facts: list[dict[str, Any]]) -> None:
    expected = f"ranks 2 and 3 (machine 1) did not join; present: ranks 0 and 1 on {hostname()}."
    assert facts[0]["half"][0] == f"Not all processes joined within 3 s: {expected}"
    assert expected[:-1] in facts[1]["half"][0]  # sent by rank 0, or found by itself if rank 0 had gone
    assert "startup_timeout_s" in facts[0]["half"][1]


@pytest.mark.slow
def test_a_restart_ignores_keys_of_previous_processes(facts: list[dict[str, Any]]) -> None:
    assert [each["again"] for each in facts] == [[False, False], [False, False]]


@pytest.mark.slow
def test_the_start_up_report_is_the_same_on_all_ranks(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["lines"] == facts[1]["lines"]
    header, row, versions = facts[0]["lines"]
    assert header.split() == ["host", "ranks", "device", "memory", "free", "process", "ids"]
    assert row.split()[:4] == [hostname(), "0-1", "2", "x"]
    assert ", ".join(str(each[2]) for each in facts[0]["members"]) in row
    assert re.match(r"gloo, \d+ threads? per process; torch ", versions), "as many as OMP_NUM_THREADS says"


@pytest.mark.slow
def test_different_settings_are_refused_but_paths_may_differ(facts: list[dict[str, Any]]) -> None:
    said = f"settings differ between {hostname()} (rank 0) and {hostname()} (rank 1): epochs."
    assert all(each["refused"].startswith(said) for each in facts)


@pytest.mark.slow
def test_rank_0_gets_the_readings_of_every_host(facts: list[dict[str, Any]]) -> None:
    assert set(facts[0]["readings"]) == {"0", "1"}
    assert all(figures["ram_used_mib"] > 0 for figures in facts[0]["readings"].values())


@pytest.mark.slow
def test_a_rank_that_comes_late_is_no_slow_link(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["link"] > 5.0, "the late exchange itself was 2 MB/s"


def member(rank: int, host: str, local_rank: int, machine: int | None = None, here: int | None = None) -> Member:
    return Member(rank, local_rank, host, 1000 + rank, machine, here)


@pytest.mark.parametrize(
    ("here", "world_size", "said"),
    [
        (
            [member(0, "alpha", 0, 0, 2), member(2, "beta", 0, 1, 2)],
            4,
            "rank 1 on alpha and rank 3 on beta did not join; present: rank 0 on alpha and rank 2 on beta",
        ),
        ([member(0, "alpha", 0, 0, 1)], 3, "rank 1 (machine 1) and rank 2 (machine 2) did not join; "),
        ([member(2, "gamma", 0, 2, 1)], 4, "rank 0 (machine 0), rank 1 (machine 1) and rank 3 (machine 3) did not"),
        ([member(0, "alpha", 0)], 6, "ranks 1 to 5 did not join; present: rank 0 on alpha"),
        # 1 process on machine 0 and 2 on machine 1: the machine of rank 3 is unknown
        ([member(0, "alpha", 0, 0, 1), member(1, "beta", 0, 1, 2)], 4, "rank 2 on beta and rank 3 did not join; "),
        ([], 2, "ranks 0 and 1 did not join; present: none"),
    ],
)
def test_description_of_missing_ranks(here: list[Member], world_size: int, said: str) -> None:
    assert str(find_missing_ranks(here, world_size)).startswith(said)


def test_description_of_ranks_by_host() -> None:
    group = [member(0, "alpha", 0), member(1, "alpha", 1), member(2, "alpha", 2), member(3, "beta", 0)]
    assert ranks_by_host(group) == "ranks 0 to 2 on alpha and rank 3 on beta"


def test_machines_of_one_name_get_their_addresses() -> None:
    twins = [
        replace(member(rank, "localhost", 0), machine_id=f"id {machine}", address=f"10.0.0.{machine + 1}")
        for rank, machine in enumerate((0, 0, 1))
    ]
    assert (
        ranks_by_host(disambiguate_hosts(twins))
        == "ranks 0 and 1 on localhost (10.0.0.1) and rank 2 on localhost (10.0.0.2)"
    )
    assert disambiguate_hosts(disambiguate_hosts(twins)) == disambiguate_hosts(twins)
    assert "rank 2 on localhost (10.0.0.2)" in str(find_missing_ranks(twins, 4))
    assert disambiguate_hosts(twins[:2]) == twins[:2]
    without = [replace(each, address="") for each in twins]
    assert ranks_by_host(disambiguate_hosts(without)).endswith("rank 2 on localhost (machine 1)")


def test_a_member_reads_its_launchers_variables() -> None:
    rank_env = RankEnv(5, 1, 8, "127.0.0.1", 1)
    of_torchrun = Member.of_this_process(rank_env, {"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
    of_slurm = Member.of_this_process(rank_env, {"SLURM_NODEID": "2"})
    assert (of_torchrun.node_rank, of_torchrun.local_world_size) == (1, 4)
    assert (of_slurm.node_rank, of_slurm.local_world_size) == (2, None)
    assert Member.of_this_process(rank_env, {}).node_rank is None


def test_another_program_at_the_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(open_store.__globals__, "REPORT_AFTER_S", 0.2)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections like any server but never answers
        port = silent.getsockname()[1]
        with pytest.raises(GroupError) as caught:
            open_store(RankEnv(1, 1, 2, "127.0.0.1", port), 1.0, said.append)
    assert "the program listening there is not rank 0's store" in caught.value.message
    assert "no other program listens on the port" in caught.value.advice
    assert f"127.0.0.1:{port} does not answer" in said[0]


def test_a_machine_of_the_same_name_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(member(0, "alpha", 0), machine_id="one")
    same_machine = replace(member(1, "alpha", 1), process_id=os.getpid(), machine_id="one")
    other_machine = replace(member(2, "alpha", 0), process_id=os.getpid(), machine_id="other")
    monitor = HeartbeatMonitor((own, same_machine, other_machine), 0, {})
    killed: list[int] = []
    monkeypatch.setattr("psutil.Process.kill", lambda process: killed.append(process.pid))
    monitor.kill(2)
    assert killed == []  # that process id belongs to a process of this machine
    monitor.kill(1)
    assert killed == [os.getpid()]
    rank_env = RankEnv(0, 0, 1, "127.0.0.1", 1)
    assert Member.of_this_process(rank_env).machine_id == Member.of_this_process(rank_env).machine_id != ""


def test_a_process_that_only_claims_to_be_a_rank_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank names the process ids; they may be those of any program of this user."""
    monkeypatch.setenv("TANDEM_START", "this start")
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    stranger = subprocess.Popen(
        sleep, env={**os.environ, "TANDEM_START": ""}, stdout=subprocess.PIPE, start_new_session=True
    )
    rank = subprocess.Popen(sleep, stdout=subprocess.PIPE)
    try:
        for process in (stranger, rank):  # before that, the system may not show its variables
            assert process.stdout is not None
            process.stdout.readline()
        own = replace(member(0, "alpha", 0), process_id=os.getpid(), machine_id="one")
        named = [replace(own, rank=1, process_id=stranger.pid), replace(own, rank=2, process_id=rank.pid)]
        monitor = HeartbeatMonitor((own, *named, replace(own, rank=3, process_id=1)), 0, {})
        for each in (3, 1, 2):
            monitor.kill(each)
        assert rank.wait(30) == -9
        assert stranger.poll() is None
        monitor = HeartbeatMonitor((own, *named), 0, {})
        monitor.kill(2)  # its process id may belong to another program by now
    finally:
        for process in (stranger, rank):
            process.kill()
            process.communicate()


def test_who_has_joined_is_reported_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look every two seconds; a line only for a change, and after half a minute without one."""
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    said: list[tuple[float, str]] = []
    deadline = rendezvous._Deadline(300.0, lambda text: said.append((clock.now, text)))
    looks: list[float] = []

    def find_missing() -> MissingRanks:
        looks.append(clock.now)
        return MissingRanks("ranks 1 and 2" if clock.now < 20 else "rank 2", "rank 0")

    while clock.now < 58:
        deadline.tick(find_missing, silent=False)
    assert [round(at) for at, _ in said[:2]] == [5, 21]
    assert 30 <= said[2][0] - said[1][0] <= 33
    assert len(said) == 3
    assert "Waiting for rank 2" in said[1][1]
    assert len(looks) <= 58 / 2
    said.clear()
    deadline = rendezvous._Deadline(300.0, lambda text: said.append((clock.now, text)))
    looks.clear()
    while clock.now < 120:
        deadline.tick(find_missing, silent=True)
    assert said == []
    assert len(looks) <= 3, "the others hardly ever ask the store"
