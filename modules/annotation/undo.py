"""Putting back what was there before proposals were written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from modules.annotation.journal import Entry, Journal, existing_folder, place_of, read_now, write_beside
from modules.annotation.proposals import ProposalSet
from modules.files import FileFault, remove_partial


@dataclass
class Undone:
    """The number of files put back, and why others were left, by file."""

    undone: int = 0
    left: dict[str, str] = field(default_factory=dict)


def undo_proposals(proposals: ProposalSet, failed: Callable[[str, str], object] = lambda file, reason: None) -> Undone:
    """Put back every file that is still as it was written; a file that has changed since stays, and `failed` is called
    with its relative path and the reason.

    May be repeated after it was interrupted. Raises ConfigError or OSError.
    """
    header = proposals.header()
    root = existing_folder(header)
    result = Undone()
    with proposals.lock():
        journal = Journal(proposals)
        entries, kept = journal.entries(), list[Entry]()
        for folder in {(root / entry.file).parent for entry in entries.values()}:
            remove_partial(folder, only="")
        for entry in reversed(entries.values()):
            try:
                if not entry.file.endswith(header.ending):
                    raise FileFault(f"does not end as these proposals do, in {header.ending}")
                result.undone += _put_back(entry, place_of(root, entry.file), journal)
            except (OSError, FileFault) as error:
                reason = str(error) if isinstance(error, FileFault) else error.strerror or str(error)
                result.left[entry.file] = reason
                failed(entry.file, reason)
                kept.append(entry)
        journal.replace(reversed(kept))
    return result


def _put_back(entry: Entry, path: Path, journal: Journal) -> bool:
    """Whether the file was not as before already. Raises OSError or FileFault."""
    if not path.parent.is_dir():  # perhaps on a disk that is not mounted now
        raise FileFault("is in a folder that does not exist any more")
    now = read_now(path)
    if now.digest == entry.before:
        return False
    if now.digest != entry.after:
        raise FileFault(
            "has changed since it was written" if now.data is not None else "was removed since it was written"
        )
    if entry.before is None:
        path.unlink()
    else:
        write_beside(path, journal.content(entry), mode=entry.mode, mtime_ns=entry.mtime_ns)
    return True
