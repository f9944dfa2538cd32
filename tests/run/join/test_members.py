"""Which machines have joined, and which are missing."""

from __future__ import annotations

from modules.run.join.members import Members, RemoteMachine


def test_a_stop_ends_the_wait_even_if_every_machine_is_ready() -> None:
    """Such as the stop file, written while the last machine joined."""
    checked: list[int] = []
    assert Members(1).wait_until_complete(1, 0, lambda: checked.append(1))
    assert checked


def test_members_summary() -> None:
    members = Members(5)
    assert members.summary() == "joined: none; missing: machines 1, 2, 3 and 4"
    assert [
        members.claim(RemoteMachine(name, "a"), wanted, 0) for name, wanted in (("x", 3), ("y", None), ("z", 3))
    ] == [
        3,
        1,
        None,
    ]
    members.mark_ready(1, 1)
    assert members.missing() == "machines 2, 3 and 4"
    members.release(1)
    assert members.missing() == "machines 1, 2, 3 and 4"


def test_machines_that_are_started_here_are_missing_by_name() -> None:
    members = Members(4, ["attic", "barn"])
    assert members.missing() == "attic, barn and 1 more"
    members.claim(RemoteMachine("attic", "a"), None, 0)
    assert members.missing() == "attic, barn and 1 more"
    members.mark_ready(1, 1)
    assert members.summary() == "joined: attic (a); missing: barn and 1 more"
    for number, name in ((2, "by hand"), (3, "barn")):
        members.claim(RemoteMachine(name, "b"), None, 0)
        members.mark_ready(number, 1)
    assert members.missing() == ""
