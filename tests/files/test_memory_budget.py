"""Threads that decode large images wait for each other, and none waits for ever."""

from __future__ import annotations

import threading

from modules.files.images import MemoryBudget


def test_the_sum_stays_below_the_limit_and_all_get_their_turn() -> None:
    budget = MemoryBudget(100)
    used, most, turns = 0, 0, 0
    lock = threading.Lock()

    def work(share: int) -> None:
        nonlocal used, most, turns
        for _ in range(50):
            with budget.reserve(share):
                with lock:
                    used += min(share, 100)
                    most = max(most, used)
                    turns += 1
                with lock:
                    used -= min(share, 100)

    threads = [threading.Thread(target=work, args=(share,)) for share in (30, 60, 60, 500, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert turns == 250
    assert most <= 100
