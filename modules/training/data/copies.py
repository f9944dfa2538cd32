"""Brings the copies of concepts' addresses up to date before a run reads them: one process of each machine does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from modules.config import DataError, TrainConfig
from modules.data.remote.copy import Copy, Unreachable
from modules.distributed import RankGroup
from modules.files import printable
from modules.files.addresses import VARIABLE, copies_folder, copy_place, is_address
from modules.files.videos import VIDEO_SUFFIXES
from modules.monitoring import Report
from modules.run.folder.run_lock import file_lock
from modules.run.format_progress import BYTES, format_bytes
from modules.training.data.cache_locks import hold_in_use, others_use

_REPORT_EVERY_S: Final = 0.5
_LOOK_EVERY_S: Final = 1.0


def copies(config: TrainConfig) -> list[Copy]:
    """The copies that the concepts in use need, each once."""
    found: dict[Path, tuple[str, set[str]]] = {}
    for concept in config.concepts:
        if concept.enabled and is_address(concept.path):
            _, extensions = found.setdefault(copy_place(concept.path), (concept.path, set()))
            extensions.update(concept.caption_extensions, VIDEO_SUFFIXES if config.clip_step is not None else ())
    return [Copy(address, extensions) for address, extensions in found.values()]


def state_of(copy: Copy) -> list[str]:
    """What a run would do about a copy, after asking what is there. Raises DataError if that is nothing."""
    try:
        copy.compare()
    except Unreachable as error:
        if copy.is_complete:
            return [_goes_on(error)]
        raise
    if copy.is_complete and others_use(copy.place) and copy.only_add():
        return [_in_use(copy)]
    total = sum(file.size for file in copy.wanted.values())
    whole = f"{copy.text}: {_files(len(copy.wanted))}, {format_bytes(total)}"
    if copy.missing:
        missing = f"{_files(len(copy.missing))}, {format_bytes(copy.missing_bytes)}"
        return [f"{whole}, of which {missing} are downloaded to {copy.root} when the run starts"]
    return [f"{whole}, as in {copy.root}"]


def update_copies(
    config: TrainConfig, ranks: RankGroup, report: Report, check_stop: Callable[[], None], held: ExitStack
) -> None:
    """Download what is missing. Called by every rank; the first rank at each folder of copies does it, also between
    runs. Until `held` is closed, other runs use the copies as they are. Raises DataError if an address cannot be read
    and its copy is not complete."""
    found = copies(config)
    if not any(ranks.gather("addresses", "found" if found else "")):
        return
    groups = ranks.shared_folder_groups(VARIABLE, copies_folder())

    def update_all() -> None:
        for copy in found if groups.is_first_in_group else ():
            copy.place.mkdir(parents=True, exist_ok=True)
            with ExitStack() as lock:
                _lock(copy, lock, report, check_stop)
                _update(copy, report, check_stop)
                hold_in_use(copy.place, ranks.rank, held)

    ranks.run_on_all("addresses", update_all)


def _update(copy: Copy, report: Report, check_stop: Callable[[], None]) -> None:
    reported = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal reported
        check_stop()
        if time.monotonic() - reported >= _REPORT_EVERY_S or done >= total:
            reported = time.monotonic()
            report.phase("downloading images", done, total, BYTES)

    def look(found: int) -> None:
        nonlocal reported
        check_stop()
        if time.monotonic() - reported >= _REPORT_EVERY_S:
            reported = time.monotonic()
            report.phase(f"asking for files of {copy.text}: {found:,}")

    try:
        copy.compare(look)
    except Unreachable as error:
        if not copy.is_complete:
            raise
        report.warning(_goes_on(error))
        return
    if copy.is_complete and others_use(copy.place) and copy.only_add():
        report.warning(_in_use(copy))
    missing, size, strays = len(copy.missing), copy.missing_bytes, len(copy.strays)
    try:
        copy.update(progress)
    except DataError as error:
        if not copy.is_complete:
            raise
        report.warning(_goes_on(error))
        return
    if odd := copy.odd:
        report.warning(
            f"{copy.text}: {_files(len(odd))} left out, whose names cannot be those of files here, such as "
            f"{printable(repr(odd[0]), 200)}."
        )
    if missing or strays:
        unread = f" {_files(copy.unread)} there are of no kind that is read." if copy.unread else ""
        came = f"{_files(missing)} ({format_bytes(size)}) downloaded to {copy.root}"
        removed = f", {_files(strays)} that are not there removed" if strays else ""
        report.note(f"{copy.text}: {came}{removed}.{unread}")


def _lock(copy: Copy, held: ExitStack, report: Report, check_stop: Callable[[], None]) -> None:
    """Hold the lock of a copy; waits for another run that downloads it. Nothing on a file system without locks."""
    has_waited = False
    while True:
        try:
            attempt = ExitStack()
            if attempt.enter_context(file_lock(copy.place / "lock", _LOOK_EVERY_S if has_waited else 0.0)):
                held.push(attempt.pop_all())
                return
            attempt.close()
        except OSError:  # the download explains it
            return
        if not has_waited:
            report.note(f"Another run downloads {copy.text}: this one waits, then uses the same copy.")
        has_waited = True
        check_stop()


def _goes_on(error: DataError) -> str:
    return f"{error.message} The complete copy of an earlier run is used as it is."


def _in_use(copy: Copy) -> str:
    return (
        f"{copy.text}: what is there has changed, but another run trains from the copy in {copy.root}, which is used "
        "as it is. A start after the end of that run brings it up to date."
    )


def _files(count: int) -> str:
    return f"{count:,} file{'s' * (count != 1)}"
