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
