"""The store, asked from a thread that must never hang: every answer comes within seconds, or StoreSilent does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from torch._C._distributed_c10d import Store

T = TypeVar("T")


class StoreSilent(Exception):
    """The store did not answer in time: its process is stopped, or its machine cannot be reached."""


class StoreGone(Exception):
    """The connection to the store has ended: the process that holds it has."""


class TimedStore:
    """A connection of its own to a store, with a limit to each answer.

    torch's store waits for ever where the process that holds it is stopped or its machine has lost its power, and
    all threads that use one connection wait behind each other.
    """

    def __init__(self, store: Store, timeout_s: float) -> None:
        self._store: Store = store.clone()  # type: ignore[attr-defined]  # torch's stubs do not know it
        self._timeout_s = timeout_s
        self._requests: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="store", daemon=True).start()

    def close(self) -> None:
        """End the connection's thread, once it is not waiting for an answer."""
        self._requests.put(None)

    def set(self, key: str, value: str) -> None:
        """Raises StoreSilent or StoreGone, as all of these do."""
        self._ask(lambda: self._store.set(key, value))

    def known(self, key: str) -> bool:
        """Whether somebody has set `key`."""
        return self._ask(lambda: self._store.check([key]))

    def get(self, key: str) -> str:
        """The value of a key that is known."""
        return self._ask(lambda: self._store.get(key)).decode()

    def get_many(self, keys: Sequence[str]) -> list[str]:
        """The values of keys that are all known."""
        return [value.decode() for value in self._ask(lambda: self._store.multi_get(list(keys)))]

    def set_first(self, key: str, value: str) -> str:
        """Set `key` unless somebody has done so before; the value that it has now."""
        return self._ask(lambda: self._store.compare_set(key, "", value)).decode()

    def _ask(self, call: Callable[[], T]) -> T:
        answered = threading.Event()
        answers: list[T] = []
        errors: list[Exception] = []

        def request() -> None:
            try:
                answers.append(call())
            except Exception as error:  # noqa: BLE001  # handed over to the thread that asked
                errors.append(error)
            answered.set()

        self._requests.put(request)
        if not answered.wait(self._timeout_s):
            raise StoreSilent
        if errors:
            raise StoreGone(str(errors[0])) from errors[0]
        return answers[0]

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            request()
