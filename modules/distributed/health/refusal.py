"""A rank that does not take part after all have met: the others' watchdogs, which begin later, learn why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from modules.config import TandemError
from modules.distributed.health.exchange import Exchange
from modules.distributed.health.timed_store import StoreClosed, StoreTimeout, TimedStore
from modules.distributed.health.watchdog import STORE_TIMEOUT_S
from modules.distributed.process_group import meet
from modules.distributed.run_store import RunStore
from modules.run import Failure
from modules.run.launch.rank_env import RankEnv


@contextmanager
def refusals_published(rank_env: RankEnv, store: RunStore) -> Iterator[None]:
    """For a block before this rank is watched over: if it raises TandemError, that ends the run on all ranks."""
    try:
        yield
    except TandemError as error:
        meeting = meet(rank_env, STORE_TIMEOUT_S, store)
        failure = Failure.from_exception(error, rank=meeting.rank, traceback="")
        connection = TimedStore(meeting.store, STORE_TIMEOUT_S)
        with suppress(StoreClosed, StoreTimeout):
            Exchange(connection, meeting.rank, meeting.world_size).publish(failure)
        connection.close()
        raise
