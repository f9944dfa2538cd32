"""From the accounts of all ranks to a verdict: who holds the others up, and who calls something else than they."""

from __future__ import annotations

import threading
import time

import pytest

from modules.distributed.diagnosis import Account, contradiction, in_words, laggard, stacks, waits
from modules.distributed.flight import Collective
from modules.distributed.stacks import main_mark, main_stack

WORLD, CONTROL = "gloo 0", "gloo 1"


def call(number: int, *, group: str = WORLD, name: str = "all_reduce", sizes: str = "[[3]] Float") -> Collective:
    """A collective that waits for others."""
    return Collective(group, number, name, sizes, waits=True, begun=float(number), timeout_s=60.0)


def done(number: int, *, group: str = WORLD) -> Collective:
    """One that is complete."""
    return Collective(group, number, "all_reduce", "[[3]] Float", waits=False, begun=float(number), timeout_s=60.0)


def account(
    rank: int, *collectives: Collective, place: str = "train.py:66 (step)", room: str = "", meeting: str = "",
    waits_for: tuple[int, ...] = (), still_s: float = 9.0,
) -> Account:  # fmt: skip
    """Rank 0 is on alpha, the others on beta."""
    host = "alpha" if rank == 0 else "beta"
    stack = f"  stack of {rank}\n"
    return Account(rank, host, 1, place, room, still_s, meeting, waits_for, collectives, stack)


def by_rank(*accounts: Account) -> dict[int, Account]:
    return {each.rank: each for each in accounts}


def test_the_rank_that_has_not_begun_what_the_others_wait_in_is_named() -> None:
    found = by_rank(
        account(0, done(811), call(812)),
        account(1, done(811), place="loader.py:12 (read)", room="the loader", still_s=41.0),
        account(2, done(811), call(812)),
    )
    verdict = laggard(found)
    assert verdict is not None
    assert (verdict.kind, verdict.rank) == ("hang", 1)
    assert verdict.message == (
        "Rank 1 on beta is in the loader at loader.py:12 (read) and has not gone on for 41 s; "
        "ranks 0 and 2 wait in all_reduce 812 from train.py:66 (step)."
    )
    assert contradiction(found) is None
    assert "Rank 2 on beta, main thread (most recent call last):\n  stack of 2" in stacks(found)
    assert [(row["rank"], row["for"]) for row in waits(found)] == [(0, [1]), (2, [1])]
    assert in_words(waits(found)).endswith(" s for rank 1 (in the loader at loader.py:12 (read)).")


def test_whoever_is_waited_for_indirectly_is_the_one() -> None:
    found = by_rank(
        account(0, done(5), place="sampling.py:3 (draw)"),
        account(1, done(5), meeting="rank 0 (sampling)", waits_for=(0,)),
        account(2, done(5), call(6)),
    )
    verdict = laggard(found)
    assert verdict is not None
    assert verdict.rank == 0
    assert "rank 1 waits for rank 0 (sampling); rank 2 waits in all_reduce 6" in verdict.message


def test_nobody_is_named_while_nobody_waits() -> None:
    assert laggard(by_rank(account(0, done(5)), account(1, done(5)))) is None
    assert laggard(by_rank(account(0, call(6)), account(1, call(6)))) is None


@pytest.mark.parametrize("other", [call(6, name="barrier", sizes=""), call(6, sizes="[[4]] Float")])
def test_another_call_at_the_same_place_is_a_mismatch(other: Collective) -> None:
    verdict = contradiction(by_rank(account(0, call(6)), account(1, other, place="own.py:7 (f)"), account(2, call(6))))
    assert verdict is not None
    assert (verdict.kind, verdict.rank) == ("mismatch", 1)
    assert f"rank 1 called {other.shape}, ranks 0 and 2 called all_reduce of [[3]] Float" in verdict.message
    assert "own.py:7 (f)" in verdict.message


def test_sizes_of_gathers_may_differ() -> None:
    first, second = call(6, name="all_gather", sizes="[[1]]"), call(6, name="all_gather", sizes="[[2]]")
    assert contradiction(by_rank(account(0, first), account(1, second))) is None


def test_waiting_for_each_other_in_two_groups_is_a_mismatch_once_it_lasts() -> None:
    def crossed(still_s: float) -> dict[int, Account]:
        before = (done(5), done(9, group=CONTROL))
        others = [account(rank, *before, call(6), still_s=still_s) for rank in (0, 2)]
        return by_rank(*others, account(1, *before, call(10, group=CONTROL), still_s=still_s))

    verdict = contradiction(crossed(4.0))
    assert verdict is not None
    assert (verdict.kind, verdict.rank) == ("mismatch", 1)
    assert contradiction(crossed(1.0)) is None


def test_an_account_travels_as_text() -> None:
    one = account(1, done(5), call(6), meeting="rank 0 (saving)", waits_for=(0,))
    assert Account.load(one.dump()) == one


def test_the_main_threads_place_is_seen_from_another_thread() -> None:
    seen = []

    def look() -> None:
        time.sleep(0.2)
        seen.extend([main_stack(), main_mark(), main_mark()])

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    stack, *marks = seen
    assert stack.place.startswith("tests/distributed/test_diagnosis.py:")
    assert "thread.join()" in stack.text
    assert marks == [stack.mark, stack.mark]
