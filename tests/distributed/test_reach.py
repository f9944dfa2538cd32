"""Whether a silent machine can be reached, and how that shortens the patience with it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from modules.distributed import loss, reach
from modules.distributed.loss import Silence
from modules.distributed.reach import Door, Reach
from modules.distributed.sign_in import Member
from modules.run.group_place import Place
from tests.ports import free_port

NOWHERE = "255.255.255.255"  # no connection to everybody can be made, so the system refuses at once


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything lasts long enough at once."""
    monkeypatch.setattr(reach, "CUT_OFF_AFTER_S", -1.0)
    for name in ("SILENT_AFTER_S", "DEAD_AFTER_CUT_OFF_S"):
        monkeypatch.setattr(loss, name, -1.0)


def member(rank: int, machine: str, address: str = "") -> Member:
    return Member(rank, 0, machine, os.getpid(), None, None, machine, address)


def test_a_refused_connection_is_an_answer_and_none_is_not() -> None:
    assert not Door("127.0.0.1", free_port(), answers=True).is_cut_off()
    door = Door(NOWHERE, 9, answers=True)
    assert not door.is_cut_off(), "nobody has knocked yet"
    door.knock()
    assert door.is_cut_off()


def test_a_machine_that_never_answered_may_be_behind_a_firewall() -> None:
    door = Door(NOWHERE, 9)
    door.knock()
    assert not door.is_cut_off()


def test_an_answer_ends_the_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door("127.0.0.1", free_port(), answers=True)
    monkeypatch.setattr(door, "_address", NOWHERE)
    door.knock()
    monkeypatch.setattr(door, "_address", "127.0.0.1")
    door.knock()
    assert not door.is_cut_off()


def test_rank_0_watches_the_other_machines_and_they_watch_its_store() -> None:
    everyone = (member(0, "alpha"), member(1, "alpha"), member(2, "beta", "127.0.0.1"), member(3, "beta", "127.0.0.1"))
    place = Place(0, 0, 4, "127.0.0.1", free_port())
    assert list(Reach.of(everyone, place).doors) == ["beta"]
    assert list(Reach.of(everyone, replace(place, rank=1)).doors) == []
    assert list(Reach.of(everyone, replace(place, rank=3)).doors) == ["alpha"]


def test_less_patience_is_needed_with_a_machine_out_of_reach() -> None:
    everyone = (member(0, "alpha"), member(1, "beta"))
    door = Door(NOWHERE, 9, answers=True)
    door.knock()
    far, near = Silence(everyone, 0, Reach({"beta": door})), Silence(everyone, 0, Reach({}))
    for each in (far, near):
        each.heard(1, 1)
    failure = far.victim(mourning=False)
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "lost")
    assert failure.message == "Host beta (rank 1) gave no sign of life for 0 s and cannot be reached."
    assert near.victim(mourning=False) is None
    other = Silence(everyone, 1, Reach({"alpha": door}))
    lost = other.unreachable_store(1.0, mourning=False)
    assert lost is not None
    assert lost.message.endswith("and cannot be reached.")
