"""Who may change a cache folder: one run at a time encodes into it, and nothing goes that a running run uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from modules.config import TandemError
from modules.data.cache.manifest import cache_files
from modules.data.cache.stored import outdated, remove_shards, stored_shards
from modules.distributed import RankGroup
from modules.machine import hostname
from modules.monitoring import Report
from modules.run.folder.run_lock import file_lock

LOCK: Final = "caching.lock"
_LOOK_EVERY_S: Final = 1.0
_USERS: Final = "in-use-*.lock"  # one of each machine of each run that trains from the folder
_CHOOSING: Final = "choosing-*.lock"  # the same, while it finds out what it uses
_REMOVING: Final = "removing.lock"
_REMOVING_S: Final = 600.0  # how long a start waits for what is being removed


def hold_in_use(cache_dir: Path, rank: int, held: ExitStack) -> None:
    """Until `held` is closed or the process ends, `check_not_in_use` names this rank. Nothing where that cannot be."""
    file = cache_dir / _USERS.replace("*", _process(rank))
    with suppress(OSError), removal_lock(cache_dir):
        held.callback(_remove, file)
        held.enter_context(file_lock(file))
        os.utime(file)  # by the clock that `mark_used` goes by: a process that was killed may have left the file


@contextmanager
def hold_choosing(cache_dir: Path, rank: int, held: ExitStack) -> Iterator[None]:
    """For the block, in which a rank finds out and marks what it uses of the folder, `remove_beyond` removes nothing;
    until `held` is closed, if not all of that could be marked (`Unmarked`)."""
    file = cache_dir / _CHOOSING.replace("*", _process(rank))
    with ExitStack() as own:
        with suppress(OSError), removal_lock(cache_dir):
            own.callback(_remove, file)
            own.enter_context(file_lock(file))
        try:
            yield
        except Unmarked:
            held.push(own.pop_all())


class Unmarked(Exception):
    """What a run uses cannot be marked, such as files of another user."""


@contextmanager
def removal_lock(cache_dir: Path) -> Iterator[bool]:
    """Hold the lock of what removes entries of the folder, for the block: no run begins to use it meanwhile. Yields
    whether it is held; raises OSError if there is no such folder, or none that can be written to."""
    with file_lock(cache_dir / _REMOVING, _REMOVING_S) as is_held:
        yield is_held


def remove_beyond(cache_dir: Path, limit: int) -> tuple[int, int]:
    """Remove what no run has used for longest, until `limit` bytes are left, and nothing that a running run uses.

    Returns the bytes that were removed and that are in use (0 if there are no more than `limit`). Raises OSError or
    TandemError.
    """
    if sum(size for *_, sizes in cache_files(cache_dir) for _, size in sizes) <= limit:
        return 0, 0
    with removal_lock(cache_dir) as is_held:
        since = _in_use_since(cache_dir) if is_held else 0.0
        shards = stored_shards(cache_dir)
        unused = [shard for shard in shards if shard.used < since]
        used = sum(shard.size for shard in shards[len(unused) :])
        removed = outdated(unused, limit - used, None)
        remove_shards(removed)
    return sum(shard.size for shard in removed), used


def _in_use_since(cache_dir: Path) -> float:
    """Whatever running runs use was marked as used at or after this time, in seconds since 1970; 0 while one of them
    still finds out what it uses."""
    if _held(cache_dir, _CHOOSING):
        return 0.0
    return min([time.time(), *(file.stat().st_mtime for file in _held(cache_dir, _USERS))])


def _held(cache_dir: Path, pattern: str) -> list[Path]:
    """The lock files of this pattern that processes hold; those that were left are removed."""
    found, own = [], pattern.replace("*", _process(0)).partition("rank-")[0]
    for file in sorted(cache_dir.glob(pattern)):
        if file.name.startswith(own):  # a process that opens and closes its own lock loses it
            found.append(file)
            continue
        with file_lock(file) as is_left:
            if not is_left:
                found.append(file)
                continue
        _remove(file)
    return found


def _process(rank: int) -> str:
    return f"{hostname()}-{os.getpid()}-rank-{rank}"


def others_use(folder: Path) -> bool:
    """Whether another process has it by `hold_in_use`, as far as its file system has locks."""
    own = _USERS.replace("*", _process(0)).partition("rank-")[0]
    return any(not file.name.startswith(own) for file in _held(folder, _USERS))


def check_not_in_use(cache_dir: Path) -> None:
    """Raises TandemError while a run trains from the folder, as far as its file system has locks."""
    if held := _held(cache_dir, _USERS):
        raise TandemError(
            f"A run trains from {str(cache_dir)!r} right now ({held[0].name}).",
            "Wait until it has ended, or stop it: --resume latest continues it.",
        )


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
