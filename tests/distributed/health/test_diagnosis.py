"""From the snapshots of all ranks to a diagnosis: which rank blocks the others, and which called something else."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from modules.distributed.health.diagnosis import (
    RankSnapshot,
    describe_wait,
    find_mismatch,
    find_straggler,
    format_stacks,
    is_any_overdue,
    wait_rows,
)
from modules.distributed.health.flight_recorder import Collective
from modules.distributed.health.heartbeat import fingerprint_of, stack_of
from modules.distributed.run_store import parse_value

WORLD, CONTROL = "gloo 0", "gloo 1"


def call(number: int, *, group: str = WORLD, name: str = "all_reduce", sizes: str = "[[3]] Float") -> Collective:
    """A pending collective."""
    return Collective(group, number, name, sizes, pending=True, started=float(number), timeout_s=60.0)


def done(number: int, *, group: str = WORLD) -> Collective:
    """A completed one."""
    return Collective(group, number, "all_reduce", "[[3]] Float", pending=False, started=float(number), timeout_s=60.0)


def snapshot(
    rank: int, *collectives: Collective, location: str = "train.py:66 (step)", component: str = "", barrier: str = "",
    waits_for: tuple[int, ...] = (), idle_s: float = 9.0,
) -> RankSnapshot:  # fmt: skip
    """Rank 0 is on alpha, the others on beta."""
    host = "alpha" if rank == 0 else "beta"
    stack = f"  stack of {rank}\n"
    return RankSnapshot(rank, host, 1, location, component, idle_s, barrier, waits_for, collectives, stack)


def by_rank(*snapshots: RankSnapshot) -> dict[int, RankSnapshot]:
    return {each.rank: each for each in snapshots}


def test_the_rank_that_did_not_start_the_collective_is_named() -> None:
    found = by_rank(
        snapshot(0, done(811), call(812)),
        snapshot(1, done(811), location="loader.py:12 (read)", component="the loader", idle_s=41.0),
        snapshot(2, done(811), call(812)),
    )
    diagnosis = find_straggler(found)
    assert diagnosis is not None
    assert (diagnosis.kind, diagnosis.rank) == ("hang", 1)
    assert diagnosis.message == (
        "Rank 1 on beta is in the loader at loader.py:12 (read) and has made no progress for 41 s; "
        "ranks 0 and 2 wait in all_reduce 812 from train.py:66 (step)."
    )
    assert find_mismatch(found) is None
    assert "Rank 2 on beta, main thread (most recent call last):\n  stack of 2" in format_stacks(found)
    assert [(row["rank"], row["for"]) for row in wait_rows(found)] == [(0, [1]), (2, [1])]
    assert describe_wait(wait_rows(found)).endswith(" s for rank 1 (in the loader at loader.py:12 (read)).")


def test_indirect_waits_lead_to_the_straggler() -> None:
    found = by_rank(
        snapshot(0, done(5), location="sampling.py:3 (draw)"),
        snapshot(1, done(5), barrier="rank 0 (sampling)", waits_for=(0,)),
        snapshot(2, done(5), call(6)),
    )
    diagnosis = find_straggler(found)
    assert diagnosis is not None
    assert diagnosis.rank == 0
    assert "rank 1 waits for rank 0 (sampling); rank 2 waits in all_reduce 6" in diagnosis.message


def test_no_straggler_while_no_rank_waits() -> None:
    assert find_straggler(by_rank(snapshot(0, done(5)), snapshot(1, done(5)))) is None
    assert find_straggler(by_rank(snapshot(0, call(6)), snapshot(1, call(6)))) is None


@pytest.mark.parametrize("other", [call(6, name="barrier", sizes=""), call(6, sizes="[[4]] Float")])
def test_different_calls_with_one_number_are_a_mismatch(other: Collective) -> None:
    diagnosis = find_mismatch(
        by_rank(snapshot(0, call(6)), snapshot(1, other, location="own.py:7 (f)"), snapshot(2, call(6)))
    )
    assert diagnosis is not None
    assert (diagnosis.kind, diagnosis.rank) == ("mismatch", 1)
    assert f"rank 1 called {other.signature}, ranks 0 and 2 called all_reduce of [[3]] Float" in diagnosis.message
    assert "own.py:7 (f)" in diagnosis.message


def test_sizes_of_gathers_may_differ() -> None:
    first, second = call(6, name="all_gather", sizes="[[1]]"), call(6, name="all_gather", sizes="[[2]]")
    assert find_mismatch(by_rank(snapshot(0, first), snapshot(1, second))) is None


def test_a_deadlock_of_two_groups_is_a_mismatch_once_it_lasts() -> None:
    def crossed(idle_s: float) -> dict[int, RankSnapshot]:
        before = (done(5), done(9, group=CONTROL))
        others = [snapshot(rank, *before, call(6), idle_s=idle_s) for rank in (0, 2)]
        return by_rank(*others, snapshot(1, *before, call(10, group=CONTROL), idle_s=idle_s))

    diagnosis = find_mismatch(crossed(4.0))
    assert diagnosis is not None
    assert (diagnosis.kind, diagnosis.rank) == ("mismatch", 1)
    assert find_mismatch(crossed(1.0)) is None


def test_a_snapshot_survives_serialisation() -> None:
    one = snapshot(1, done(5), call(6), barrier="rank 0 (saving)", waits_for=(0,))
    assert parse_value(RankSnapshot, json.dumps(asdict(one)), "it") == one


def test_a_threads_location_is_seen_from_outside() -> None:
    seen: list[Any] = []
    own = threading.get_ident()

    def look() -> None:
        time.sleep(0.2)
        seen.extend([stack_of(own), fingerprint_of(own), fingerprint_of(own)])

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    stack, *marks = seen
    assert stack.location.startswith("tests/distributed/health/test_diagnosis.py:")
    assert "thread.join()" in stack.text
    assert marks[0] == marks[1]


@pytest.mark.parametrize("clock_is_set_by_s", [0.0, 3600.0, -3600.0])
def test_a_clock_that_is_set_makes_no_collective_overdue_and_hides_none(clock_is_set_by_s: float) -> None:
    for waits_s, is_overdue in ((20.0, False), (55.0, True)):
        pending = replace(call(3), started=time.time() - waits_s - clock_is_set_by_s)
        assert is_any_overdue(by_rank(snapshot(0, pending)), {0: waits_s}, "alpha") is is_overdue
