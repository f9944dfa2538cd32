"""See, check and shrink a cache folder: `python scripts/cache.py list cache`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import confirmed, exit_code_of, prepare_program, program_parser

prepare_program()

from modules.config import ConfigError, TrainConfig
from modules.data.cache.stored import StoredShard, find_damage, outdated, remove_shards, stored_shards
from modules.run.console import echo, warn
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED
from modules.run.format_progress import format_bytes

EXAMPLES = """examples:
  how much there is, and when runs last started with it:
    python scripts/cache.py list cache
  read every file and compare the checksums; with --remove, what is damaged is encoded anew by the next run:
    python scripts/cache.py verify cache --remove
  keep 50 GB, those used last; and nothing that no run has started with for 30 days:
    python scripts/cache.py prune cache --limit 50
    python scripts/cache.py prune cache --unused 30

exit codes: 0 done and undamaged, 2 a mistake in the command or no such folder, 3 a file is damaged or cannot be removed
"""
_AGES = ((1.0, "today"), (7.0, "within 7 days"), (30.0, "within 30 days"), (float("inf"), "longer ago"))
_DAY_S = 86400.0


def main(arguments: list[str] | None = None) -> int:
    """Do what was asked; returns an exit code."""
    options = parser().parse_args(arguments)
    action = {"list": show, "verify": verify, "prune": prune}[options.action]
    return exit_code_of(partial(action, options, Path(options.folder)), options.folder)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = program_parser("See, check and shrink the cache of encoded images.", EXAMPLES)
    actions = top.add_subparsers(dest="action", required=True, metavar="list|verify|prune")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        default = TrainConfig().cache_dir
        action.add_argument("folder", metavar="FOLDER", nargs="?", default=default, help=f"cache_dir ({default})")
        return action

    add("list", "how much was last used when")
    checking = add("verify", "read every file and compare the checksums")
    checking.add_argument("--remove", action="store_true", help="remove those that are damaged")
    removing = add("prune", "remove what was not used for longest; runs encode again what they miss")
    removing.add_argument("--limit", type=float, metavar="GB", help="until this much is left")
    removing.add_argument("--unused", type=float, metavar="DAYS", help="all that no run has started with for so long")
    removing.add_argument("--yes", action="store_true", help="do not ask")
    removing.add_argument("--dry_run", action="store_true", help="only say what would be removed")
    return top


def show(options: argparse.Namespace, folder: Path) -> int:
    """`list`."""
    left = shards = stored_shards(folder)
    rows, now = [("last used", "entries", "size")], time.time()
    for days, title in _AGES:
        found = [shard for shard in left if now - shard.used < days * _DAY_S]
        left = [shard for shard in left if now - shard.used >= days * _DAY_S]
        if found:
            rows.append((title, f"{_entries(found):,}", format_bytes(_size(found))))
    if len(rows) == 1:
        echo(f"{folder} holds no encoded images.")
        return FINISHED
    rows.append(("in all", f"{_entries(shards):,}", format_bytes(_size(shards))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for age, entries, size in rows:
        echo(f"{age.ljust(widths[0])}  {entries.rjust(widths[1])}  {size.rjust(widths[2])}")
    return FINISHED


def verify(options: argparse.Namespace, folder: Path) -> int:
    """`verify`."""
    shards = stored_shards(folder)
    damaged = []
    for shard in shards:
        if fault := find_damage(shard):
            damaged.append(shard)
            echo(f"{shard.path}: {fault}")
    echo(f"{len(damaged)} of {len(shards)} files are damaged.")
    if not damaged:
        return FINISHED
    if options.remove:
        from modules.training.data.cache_locks import check_not_in_use, removal_lock

        with removal_lock(folder):
            check_not_in_use(folder)
            remove_shards(damaged)
        echo(f"Removed; the next run encodes their {_entries(damaged):,} entries again.")
        return FINISHED
    return FAILED


def prune(options: argparse.Namespace, folder: Path) -> int:
    """`prune`."""
    if options.limit is None and options.unused is None:
        raise ConfigError("prune needs to know how much to remove.", "Give --limit GB, --unused DAYS or both")
    for name, value in (("limit", options.limit), ("unused", options.unused)):
        if value is not None and not 0 <= value < float("inf"):
            raise ConfigError(f"--{name} is {value:g}; use 0 or more.")
    shards = stored_shards(folder)
    limit = None if options.limit is None else int(options.limit * 1e9)
    removed = outdated(shards, limit, options.unused)
    if not removed:
        echo(f"Nothing to remove of {format_bytes(_size(shards))}.")
        return FINISHED
    last = time.strftime("%Y-%m-%d %H:%M", time.localtime(removed[-1].used))
    echo(
        f"{format_bytes(_size(removed))} of {format_bytes(_size(shards))}, {_entries(removed):,} entries, "
        f"were last used up to {last}."
    )
    if options.dry_run:
        return FINISHED
    from modules.training.data.cache_locks import check_not_in_use, removal_lock  # torch takes seconds to import

    check_not_in_use(folder)
    if not options.yes and not confirmed():
        warn("Nothing was removed. Answer y, or start it with --yes.")
        return INTERRUPTED
    with removal_lock(folder):
        check_not_in_use(folder)  # again: a run may have started during the question
        remove_shards(removed)
    echo(f"Removed; {format_bytes(_size(removed))} are free again.")
    return FINISHED


def _entries(shards: Sequence[StoredShard]) -> int:
    return sum(shard.entries for shard in shards)


def _size(shards: Sequence[StoredShard]) -> int:
    return sum(shard.size for shard in shards)


if __name__ == "__main__":
    sys.exit(main())
