"""Early synchronisation: who is missing is named, also while one waits, and nobody reads what a former start left."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from typing import Any

import pytest

from modules.distributed import GroupError, Place, spawn
from modules.distributed.loss import Silence
from modules.distributed.process_group import open_store
from modules.distributed.sign_in import Member, by_host, told_apart, who_is_missing
from modules.machine import hostname
from tests.distributed import sign_in_programs
from tests.ports import free_port


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("signing_in")
    ports = [free_port() for _ in range(4)]
    spawn(sign_in_programs.signing_in, 2, ports[0], (ports[1:], folder))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_who_waits_says_for_whom(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["said"][0].startswith("Waiting for rank 1")
    assert f"here: rank 0 on {hostname()}." in facts[0]["said"][0]


@pytest.mark.slow
def test_all_know_all(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["members"] == facts[1]["members"]
    assert [row[:2] for row in facts[0]["members"]] == [[0, hostname()], [1, hostname()]]
    assert len({row[2] for row in facts[0]["members"]}) == 2


@pytest.mark.slow
def test_the_missing_are_named_with_their_machine(facts: list[dict[str, Any]]) -> None:
    expected = f"ranks 2 and 3 (machine 1) did not come; here: ranks 0 and 1 on {hostname()}."
    assert facts[0]["half"][0] == f"Not all processes came within 3 s: {expected}"
    assert expected[:-1] in facts[1]["half"][0]  # told by rank 0, or seen by itself when rank 0 had gone
    assert "startup_timeout_s" in facts[0]["half"][1]


@pytest.mark.slow
def test_after_a_restart_nobody_reads_what_the_former_processes_left(facts: list[dict[str, Any]]) -> None:
    assert [each["again"] for each in facts] == [[False, False], [False, False]]


@pytest.mark.slow
def test_the_start_up_report_is_the_same_on_all_ranks(facts: list[dict[str, Any]]) -> None:
    assert facts[0]["lines"] == facts[1]["lines"]
    header, row, versions = facts[0]["lines"]
    assert header.split() == ["host", "ranks", "device", "memory", "free", "process", "ids"]
    assert row.split()[:4] == [hostname(), "0-1", "2", "x"]
    assert ", ".join(str(each[2]) for each in facts[0]["members"]) in row
    assert versions.startswith("gloo, 1 thread a process; torch ")


@pytest.mark.slow
def test_other_settings_are_refused_by_name_on_all_ranks_but_paths_may_differ(facts: list[dict[str, Any]]) -> None:
    said = f"settings differ between {hostname()} (rank 0) and {hostname()} (rank 1): epochs."
    assert all(each["refused"].startswith(said) for each in facts)


@pytest.mark.slow
def test_rank_0_gets_the_readings_of_every_host(facts: list[dict[str, Any]]) -> None:
    assert set(facts[0]["readings"]) == {"0", "1"}
    assert all(figures["ram_used_mib"] > 0 for figures in facts[0]["readings"].values())


def member(rank: int, host: str, local_rank: int, machine: int | None = None, here: int | None = None) -> Member:
    return Member(rank, local_rank, host, 1000 + rank, machine, here)


@pytest.mark.parametrize(
    ("here", "world_size", "said"),
    [
        (
            [member(0, "alpha", 0, 0, 2), member(2, "beta", 0, 1, 2)],
            4,
            "rank 1 on alpha and rank 3 on beta did not come; here: rank 0 on alpha and rank 2 on beta",
        ),
        ([member(0, "alpha", 0, 0, 1)], 3, "rank 1 (machine 1) and rank 2 (machine 2) did not come; "),
        ([member(2, "gamma", 0, 2, 1)], 4, "rank 0 (machine 0), rank 1 (machine 1) and rank 3 (machine 3) did not"),
        ([member(0, "alpha", 0)], 6, "ranks 1 to 5 did not come; here: rank 0 on alpha"),
        # 1 process on machine 0 and 2 on machine 1: where rank 3 would be, nobody knows
        ([member(0, "alpha", 0, 0, 1), member(1, "beta", 0, 1, 2)], 4, "rank 2 on beta and rank 3 did not come; "),
        ([], 2, "ranks 0 and 1 did not come; here: nobody"),
    ],
)
def test_words_for_who_is_missing(here: list[Member], world_size: int, said: str) -> None:
    assert str(who_is_missing(here, world_size)).startswith(said)


def test_words_for_who_is_where() -> None:
    group = [member(0, "alpha", 0), member(1, "alpha", 1), member(2, "alpha", 2), member(3, "beta", 0)]
    assert by_host(group) == "ranks 0 to 2 on alpha and rank 3 on beta"


def test_machines_of_one_name_are_told_by_their_addresses() -> None:
    twins = [
        replace(member(rank, "localhost", 0), machine_id=f"id {machine}", address=f"10.0.0.{machine + 1}")
        for rank, machine in enumerate((0, 0, 1))
    ]
    assert by_host(told_apart(twins)) == "ranks 0 and 1 on localhost (10.0.0.1) and rank 2 on localhost (10.0.0.2)"
    assert told_apart(told_apart(twins)) == told_apart(twins)
    assert "rank 2 on localhost (10.0.0.2)" in str(who_is_missing(twins, 4))
    assert told_apart(twins[:2]) == twins[:2]
    without = [replace(each, address="") for each in twins]
    assert by_host(told_apart(without)).endswith("rank 2 on localhost (machine 1)")


def test_a_member_knows_what_its_launcher_says() -> None:
    place = Place(5, 1, 8, "127.0.0.1", 1)
    of_torchrun = Member.here(place, {"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
    of_slurm = Member.here(place, {"SLURM_NODEID": "2"})
    assert (of_torchrun.machine, of_torchrun.processes_here) == (1, 4)
    assert (of_slurm.machine, of_slurm.processes_here) == (2, None)
    assert Member.here(place, {}).machine is None


def test_another_program_at_the_port_is_no_reason_to_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(open_store.__globals__, "TELL_AFTER_S", 0.2)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, as any server does, and says nothing
        port = silent.getsockname()[1]
        with pytest.raises(GroupError) as caught:
            open_store(Place(1, 1, 2, "127.0.0.1", port), 1.0, said.append)
    assert "something listens there that is not the store of rank 0" in caught.value.message
    assert "no other program listens on the port" in caught.value.advice
    assert f"127.0.0.1:{port} does not answer" in said[0]


def test_a_machine_of_the_same_name_is_another_machine() -> None:
    own = replace(member(0, "alpha", 0), machine_id="one")
    beside = replace(member(1, "alpha", 1), process_id=os.getpid(), machine_id="one")
    elsewhere = replace(member(2, "alpha", 0), process_id=os.getpid(), machine_id="other")
    silence = Silence((own, beside, elsewhere), 0)
    assert silence.process_of(1) is not None
    assert silence.process_of(2) is None  # that number belongs to a process of this machine
    place = Place(0, 0, 1, "127.0.0.1", 1)
    assert Member.here(place).machine_id == Member.here(place).machine_id != ""
