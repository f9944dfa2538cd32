"""A store client for threads that must never hang: every call returns within seconds or raises StoreTimeout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from modules.distributed.run_store import RunStore, StoreFault

T = TypeVar("T")


class StoreTimeout(Exception):
    """The store did not answer in time: its process is stopped, or its machine cannot be reached."""


class StoreClosed(Exception):
    """The connection to the store was closed: the process that hosts it has exited."""


class TimedStore:
    """A separate connection to a store, with a timeout on each call.

    torch's store waits for ever if the process that hosts it is stopped or its machine loses power, and
    all threads that share a connection queue behind each other. Every method raises StoreTimeout or StoreClosed, and
    those that read StoreFault for what no rank of this run has written.
    """

    def __init__(self, store: RunStore, timeout_s: float) -> None:
        self._shared = store
        self._connection: RunStore | Exception = RuntimeError("the store was never reached")
        self._timeout_s = timeout_s
        self._requests: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._has_connected = threading.Event()
        threading.Thread(target=self._work, name="store", daemon=True).start()
        self._has_connected.wait(timeout_s)  # so that the first call has the whole time

    def close(self) -> None:
        """End the connection's thread, once it is not waiting for an answer."""
        self._requests.put(None)

    def set(self, key: str, value: str) -> None:
        """Set `key`."""
        self._call(lambda: self._store.set(key, value))

    def find(self, key: str) -> str | None:
        """The value of `key`; None if it is not set."""
        value = self._call(lambda: self._store.find(key))
        return None if value is None else value.decode(errors="replace")

    def has(self, key: str) -> bool:
        """Whether `key` is set, whoever has written it."""
        return self._call(lambda: self._store.check([key]))

    def get_many(self, keys: Sequence[str]) -> list[bytes | StoreFault]:
        """The values of keys that have all been set, or what is wrong with them."""
        return self._call(lambda: self._store.authentic(keys))

    def set_if_absent(self, key: str, value: str) -> str:
        """Set `key` unless it has been set before; returns its value now."""
        return self._call(lambda: self._store.set_if_absent(key, value)).decode(errors="replace")

    def _call(self, call: Callable[[], T]) -> T:
        done = threading.Event()
        results: list[T] = []
        errors: list[Exception] = []

        def request() -> None:
            try:
                results.append(call())
            except Exception as error:  # noqa: BLE001  # passed on to the calling thread
                errors.append(error)
            done.set()

        self._requests.put(request)
        if not done.wait(self._timeout_s):
            raise StoreTimeout
        if errors and isinstance(errors[0], StoreFault):
            raise errors[0]
        if errors:
            raise StoreClosed(str(errors[0])) from errors[0]
        return results[0]

    @property
    def _store(self) -> RunStore:
        """The connection, in the thread that uses it. Raises what connecting raised."""
        if isinstance(self._connection, Exception):
            raise self._connection
        return self._connection

    def _work(self) -> None:
        try:
            self._connection = self._shared.clone()  # here, because it may take for ever, too
        except Exception as error:  # noqa: BLE001  # passed on by every call
            self._connection = error
        self._has_connected.set()
        while (request := self._requests.get()) is not None:
            request()
