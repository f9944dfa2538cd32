"""Lets each call fail by which a backup is written, one after the other: `failing_backups.py FOLDER SEED FIRST LAST`,
with the shim; prints a line for each call.

Both versions of backups: whole, and in the parts of two ranks. After each failure the newest backup is undamaged, also
while the disk is still bad, and the next one can be written.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from modules.checkpoint import Backups, find_damage
from tests.checkpoint.states import state_at
from tests.torture.records import print_record
from tests.torture.shim import Faults
from tests.training.backup.test_sharded import SIZE as PARTS_SIZE
from tests.training.backup.test_sharded import Pair, part_of

# each once, or from the failed call on until the disk is well again
ERRORS = (("ENOSPC", True), ("EDQUOT", True), ("EROFS", True), ("EIO", True), ("EIO", False), ("EINTR", False))
SIZE = 3000


def writer(backups: Backups, folder: Path, keep: int, *, in_parts: bool) -> Callable[[int], Path]:
    """Writes the backup of a step."""
    if not in_parts:
        return lambda step: backups.write(state_at(step, SIZE), "{}")
    pair = Pair(folder, keep=keep)

    def write(step: int) -> Path:
        pair.both(lambda each, rank: each.write(part_of(state_at(step, PARTS_SIZE), rank), "{}"))
        return folder / f"step-{step:06d}"

    return write


def every_call(
    folder: Path, faults: Faults, error: int, *, lasts: bool, is_same: bool, in_parts: bool
) -> Iterator[bool]:
    """For each call that failed, whether the backup is complete nevertheless; `is_same`: each takes the place of the
    one before."""
    keep = 1 if is_same else 2
    backups = Backups(folder, keep)
    write = writer(backups, folder, keep, in_parts=in_parts)
    faults.place(folder)
    faults.disarm()
    last = write(1)
    call = 0
    while True:
        call += 1
        step = 1 if is_same else call + 1
        faults.arm(call, error, lasts=lasts)
        try:
            written: Path | None = write(step)
        except OSError:
            written = None
        counted = faults.count
        newest_then, damaged_then = backups.newest_valid()  # as another process sees it while the disk is bad
        faults.disarm()
        newest, damaged = backups.newest_valid()
        assert not damaged, (call, damaged)
        assert not damaged_then, (call, damaged_then)
        assert newest is not None, (call, sorted(folder.iterdir()))
        assert newest_then is not None or is_same, "between the two renames of a replacement it has no name of its own"
        assert find_damage(newest) is None
        assert newest.name in {f"step-{step:06d}", last.name}, (call, newest, last)
        assert written is None or newest == newest_then == written, (call, newest, newest_then, written)
        last = newest
        if counted < call:
            assert written is not None
            names = sorted(path.name for path in folder.iterdir())
            assert len(names) <= keep, names
            assert not [name for name in names if "partial" in name], names
            return
        yield written is not None


def main(folder: Path, first: int, last: int) -> None:
    torch.set_num_threads(1)
    faults, number = Faults(), 0
    flags = (False, True)
    modes = [(*each, is_same, in_parts) for in_parts in flags for is_same in flags for each in ERRORS]
    for name, lasts, is_same, in_parts in modes:
        place = folder / f"{name}-{lasts}-{is_same}-{in_parts}"
        what = f"{name}{' from then on' * lasts}{', the same step' * is_same}{', in parts' * in_parts}"
        error = getattr(errno, name)
        calls = every_call(place, faults, error, lasts=lasts, is_same=is_same, in_parts=in_parts)
        while number <= last and print_record(number, lambda: (next(calls), what), first):  # noqa: B023  # at once
            number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))
