"""Wait for other ranks for as long as their work takes, and notice within seconds if one of them dies.

Long work (caching, sampling, saving) is never waited for in a collective, whose timeout would have to be hours.
Instead, a waiting rank polls the store for the result and asks its watchdog whether the run can still continue.

Rank 0 waits for each of the others, and they for rank 0: N ranks ask N times, not N * N times. Whether a barrier
completes or is cancelled is decided exactly once: no rank continues if another has left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from modules.distributed.health.watchdog import Watchdog
from modules.distributed.run_store import RunStore, StoreFault
from modules.files import printable

POLL_EVERY_S = 0.05
POLLS_PER_SECOND = 1024  # of all ranks together: those of larger groups ask less often
_FIRST_POLLS_S = 0.001  # most waits are short, and each one between two steps is lost for training
_COMPLETED = "completed"
_PIECE = 1 << 20  # characters: torch's store ends the connection over a value of more than 8 MiB
_MOST_PIECES = 1024


class StoreBarrier:
    """Barriers after work of unequal length; all ranks call the same methods in the same order."""

    def __init__(self, store: RunStore, rank: int, world_size: int, watchdog: Watchdog) -> None:
        self._store = store
        self.rank, self.world_size = rank, world_size
        self.on_wait: Callable[[], None] = do_nothing  # called repeatedly while this rank waits; may raise
        self._watchdog = watchdog
        self._round = 0

    def cancel(self, reason: str) -> bool:
        """Make every rank leave at the current barrier; False if it has completed already and all continue."""
        return self._decide(reason) == reason

    def cancel_reason(self) -> str:
        """The reason for which a rank cancelled the current barrier; empty if none has."""
        decision = (self._store.find(self._decision_key) or b"").decode(errors="replace")
        return "" if decision == _COMPLETED else decision

    def run_on_rank0(self, name: str, work: Callable[[], None]) -> None:
        """Rank 0 works, the others wait for it."""
        key = self._next_key(name)
        if self.rank == 0:
            work()
            self._store.set(f"{key}/0", "done")
        else:
            self._wait_for(0, f"{key}/0", name)
            self._store.get(f"{key}/0")  # raises if it is forged
        self._complete()

    def run_on_all(self, name: str, work: Callable[[], None]) -> None:
        """Every rank works, then waits for all others."""
        key = self._next_key(name)  # before the work, so that it can be cancelled
        work()
        self._arrive(key, name, "done")
        self._complete()

    def gather(self, name: str, text: str) -> list[str]:
        """The texts of all ranks, by rank."""
        key = self._next_key(name)
        self._arrive(key, name, text)
        texts = self._published([f"{key}/{rank}" for rank in range(self.world_size)])
        self._complete()
        return texts

    def _arrive(self, key: str, name: str, text: str) -> None:
        """Publish `text` and wait until every rank has."""
        self._publish(f"{key}/{self.rank}", text)
        if self.rank == 0:
            keys = [f"{key}/{rank}" for rank in range(self.world_size)]
            for rank in range(1, self.world_size):
                self._wait_for(rank, keys[rank], name)
            self._store.multi_get(keys)  # raises if one is forged
            self._store.set(f"{key}/all", "published")
        else:
            self._wait_for(0, f"{key}/all", name)
            self._store.get(f"{key}/all")  # raises if it is forged

    def _publish(self, key: str, text: str) -> None:
        """In pieces; the first one, with their number, last: who finds it finds all."""
        pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)] or [""]
        for number, piece in enumerate(pieces[1:], 1):
            self._store.set(f"{key}/{number}", piece)
        self._store.set(key, f"{len(pieces)} {pieces[0]}")

    def _published(self, keys: Sequence[str]) -> list[str]:
        """What ranks have published. Raises StoreFault if one is forged."""
        texts: list[str] = []
        for key, first in zip(keys, self._store.multi_get(keys), strict=True):
            count, _, piece = first.partition(b" ")
            if not (count.isdigit() and len(count) < 5 and int(count) <= _MOST_PIECES):
                raise StoreFault(f"the value {printable(key, 100)!r} in the store has no number of pieces.")
            rest = self._store.multi_get([f"{key}/{number}" for number in range(1, int(count))])
            texts.append(b"".join([piece, *rest]).decode(errors="replace"))
        return texts

    @property
    def _decision_key(self) -> str:
        return f"barrier/{self._round}/decision"

    def _decide(self, decision: str) -> str:
        """The first decision that any rank made on this barrier: the same for all."""
        return self._store.set_if_absent(self._decision_key, decision).decode(errors="replace")

    def _complete(self) -> None:
        """All ranks have arrived; if one has cancelled meanwhile, `on_wait` finds out."""
        if self._decide(_COMPLETED) != _COMPLETED:
            self.on_wait()

    def _next_key(self, name: str) -> str:
        self._round += 1
        return f"barrier/{self._round}/{name}"

    def _wait_for(self, rank: int, key: str, name: str) -> None:
        """Wait until `rank` has set `key`, or whoever else has written it."""
        longest_s = max(POLL_EVERY_S, self.world_size / POLLS_PER_SECOND)
        with self._watchdog.waiting(f"rank {rank} ({name})", rank):
            pause_s = _FIRST_POLLS_S
            while not self._store.check([key]):
                self.on_wait()
                self._watchdog.check()
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)


def do_nothing() -> None:
    """Waiting needs no attention."""
