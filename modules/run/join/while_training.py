"""The connection of a joined machine while it trains: its failures and a signal that stops it are sent to machine 0."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Final

from modules.run.folder.failures import Failure, read_failures
from modules.run.folder.run_folder import RunFolder
from modules.run.join.channel import ChannelClosed
from modules.run.join.session import Session

_POLL_EVERY_S: Final = 0.3


@contextmanager
def while_training(
    session: Session, folder: RunFolder, ranks: range, stop: Callable[[], tuple[str, str]] = lambda: ("", "")
) -> Iterator[None]:
    """Inside the block every new failure of `ranks` is sent at once to machine 0, which may not see this disk.

    So is the `stop`, its reason and what has requested it, once the second is not empty: machine 0 stops all, because
    ranks that are starting here do not hear of it. What arrives meanwhile is kept for `session.receive`; nothing else
    may receive inside the block.
    """
    is_over = threading.Event()
    has_told = False
    sent = {(failure.rank, failure.time) for failure in read_failures(folder)}  # of an earlier start

    def attend() -> None:
        nonlocal has_told
        while not is_over.wait(_POLL_EVERY_S):
            session.drain()
            reason, stopped_by = stop()
            if stopped_by and not has_told:
                has_told = True
                with suppress(ChannelClosed):
                    session.send("stopping", by=stopped_by, reason=reason)
            for failure in read_failures(folder):
                if failure.rank in ranks and (failure.rank, failure.time) not in sent:
                    sent.add((failure.rank, failure.time))
                    with suppress(ChannelClosed):
                        send_failure(session, failure)

    thread = threading.Thread(target=attend, name="failures", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def send_failure(session: Session, failure: Failure) -> None:
    """Report a failure of this machine to machine 0. Raises ChannelClosed."""
    session.send("failure", **{**asdict(failure), "age_s": time.time() - failure.time})
