"""Who may change a cache folder: one run at a time encodes into it, and nothing goes while a run trains from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from modules.config import TandemError
from modules.distributed import RankGroup
from modules.machine import hostname
from modules.monitoring import Report
from modules.run.folder.run_lock import file_lock

LOCK: Final = "caching.lock"
_LOOK_EVERY_S: Final = 1.0
_USERS: Final = "in-use-*.lock"  # one of each machine of each run that trains from the folder


def hold_in_use(cache_dir: Path, rank: int, held: ExitStack) -> None:
    """Until `held` is closed or the process ends, `check_not_in_use` names this rank. Nothing where that cannot be."""
    file = cache_dir / _USERS.replace("*", f"{hostname()}-{os.getpid()}-rank-{rank}")
    with suppress(OSError):
        held.callback(_remove, file)
        held.enter_context(file_lock(file))


def check_not_in_use(cache_dir: Path) -> None:
    """Raises TandemError while a run trains from the folder, as far as its file system has locks."""
    for file in sorted(cache_dir.glob(_USERS)):
        with file_lock(file) as is_left:
            if not is_left:
                raise TandemError(
                    f"A run trains from {str(cache_dir)!r} right now ({file.name}).",
                    "Wait until it has ended, or stop it: --resume latest continues it.",
                )
        _remove(file)  # of a process that was killed


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)


@contextmanager
def locked_caches(
    cache_dir: Path, ranks: RankGroup, report: Report, check_stop: Callable[[], None], *, locks: bool
) -> Iterator[bool]:
    """Hold the locks of a run's cache folders for the block: those of the ranks with `locks`. All ranks call it.

    Yields on each rank whether any of them has waited for another run.
    """
    has_waited: list[bool] = []
    with ExitStack() as held:

        def hold(rank: int) -> None:
            if ranks.rank == rank:
                has_waited.append(held.enter_context(cache_lock(cache_dir, report, check_stop)))

        folder = f"{hostname()} {cache_dir.absolute()}" if locks else ""
        for rank in lock_order(ranks.gather("cache folders to lock", folder)):
            ranks.run_on_all("cache lock", partial(hold, rank))
        yield any(ranks.gather("waited for another run's cache", "waited" if any(has_waited) else ""))


@contextmanager
def cache_lock(cache_dir: Path, report: Report, check_stop: Callable[[], None]) -> Iterator[bool]:
    """Hold the lock of a cache folder for the block; yields whether another run was waited for.

    Raises what `check_stop` raises, which is called while it waits. Does nothing on a file system without locks.
    """
    has_waited = False
    while True:
        with ExitStack() as held:
            try:
                is_held = held.enter_context(file_lock(cache_dir / LOCK, _LOOK_EVERY_S if has_waited else 0.0))
            except OSError:  # whoever writes to the folder reports it
                is_held = True
            if is_held:
                yield has_waited
                return
        if not has_waited:
            report.note(
                f"Another run is caching images in {cache_dir}: this one waits, then uses what is cached. If there is "
                f"no other run (a host that is gone may leave its lock), remove {cache_dir / LOCK}."
            )
        has_waited = True
        check_stop()


def lock_order(folders: Sequence[str]) -> list[int]:
    """The ranks that lock a cache folder, one after the other, from the folder of each rank ("" if it locks none).

    Every run has the same order, so that two runs on the same machines never wait for each other.
    """
    return sorted((rank for rank, folder in enumerate(folders) if folder), key=folders.__getitem__)
