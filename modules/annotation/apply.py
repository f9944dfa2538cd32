"""Writing proposals beside the images, after what was there has been kept; and putting that back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from modules.annotation.combine import combined_caption, combined_mask
from modules.annotation.journal import Entry, Journal, digest_of, existing_folder, place_of, read_now, write_beside
from modules.annotation.proposals import Header, Mode, Proposal, ProposalSet
from modules.files import FileFault, file_size, is_link, read_bytes, remove_partial

_CAPTION_LIMIT: Final = 1 << 20  # bytes, as for training
_MASK_LIMIT: Final = 256 << 20  # bytes
_AT_ONCE: Final = 100  # files that are kept in the journal before they are written


@dataclass
class Applied:
    """The number of files written, and of those that were as proposed; why others were not, by image."""

    written: int = 0
    unchanged: int = 0
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Change:
    """A file to write; `kept` is what the journal has to keep."""

    image: str
    path: Path
    data: bytes
    entry: Entry
    kept: bytes | None
    mode: int


def apply_proposals(
    proposals: ProposalSet, failed: Callable[[str, str], object] = lambda image, reason: None
) -> Applied:
    """Write all wanted proposals; `failed` is called with an image and the reason why its file was not written.

    May be repeated after it was interrupted, and after proposals were changed. Raises ConfigError or OSError.
    """
    header = proposals.header()
    root = existing_folder(header)
    result = Applied()

    def reject(image: str, reason: str) -> None:
        result.faults[image] = reason
        failed(image, reason)

    with proposals.lock():
        journal = Journal(proposals)
        plan = _Plan(header, root, proposals, journal, journal.entries())
        wanted = list(_with_own_file(plan, proposals.read().values(), reject))
        for first in range(0, len(wanted), _AT_ONCE):
            changes = list(_planned(plan, wanted[first : first + _AT_ONCE], result, reject))
            if not changes:
                continue
            for folder in {change.path.parent for change in changes}:
                remove_partial(folder, only="")  # of a program that was killed here
            journal.record((change.entry, change.kept) for change in changes)
            for change in changes:
                _write(change, result, reject)
    return result


def _write(change: _Change, result: Applied, reject: Callable[[str, str], None]) -> None:
    """Raises OSError if the disk is full; any other fault may be that of one folder or file."""
    try:
        write_beside(change.path, change.data, mode=change.mode)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error.errno, error.strerror, str(change.path.parent)) from error
        reject(change.image, f"is not written: {error.strerror or error}")
    else:
        result.written += 1


@dataclass(frozen=True)
class _Plan:
    header: Header
    root: Path
    proposals: ProposalSet
    journal: Journal
    former: dict[str, Entry]

    def file_of(self, proposal: Proposal) -> str:
        """The relative path of the file to write."""
        return os.path.splitext(proposal.image)[0] + self.header.ending

    def change(self, proposal: Proposal) -> _Change | None:
        """None if the file is as proposed. Raises OSError or FileFault."""
        image = place_of(self.root, proposal.image)
        if not file_size(image):
            raise FileFault("is empty")
        relative = self.file_of(proposal)
        path = place_of(self.root, relative)
        now = read_now(path)
        mode: Mode = self.header.mode
        entry, base = self.former.get(relative), now.data
        if entry is not None and now.digest == entry.after:  # written before: an edited proposal takes its place
            base = None if entry.before is None else self.journal.content(entry)
        elif entry is not None and now.digest != entry.before:
            raise FileFault(f"is not written: {path.name} has changed since the last time")
        if mode == "missing" and base is not None and base.strip():
            raise FileFault(f"is not written: {path.name} exists meanwhile")
        data = self._content(proposal, base, image)
        if data == now.data:
            return None
        if entry is not None and now.digest == entry.after:
            return _Change(
                proposal.image, path, data, entry.model_copy(update={"after": digest_of(data)}), base, now.mode
            )
        new = Entry(file=relative, before=now.digest, after=digest_of(data), mode=now.mode, mtime_ns=now.mtime_ns)
        return _Change(proposal.image, path, data, new, now.data, now.mode)

    def _content(self, proposal: Proposal, base: bytes | None, image: Path) -> bytes:
        mode = self.header.mode
        if proposal.mask is not None:
            file = self.proposals.mask_file(proposal)
            if is_link(file) or is_link(file.parent):
                raise FileFault("has a proposed mask that is a link")
            data = read_bytes(file, _MASK_LIMIT)
            return combined_mask(data, base if mode == "append" else None, image)
        if base is not None and len(base) > _CAPTION_LIMIT:
            raise FileFault("has a caption file of more than 1 MiB")
        return combined_caption(proposal.text or "", base if mode == "append" else None, self.header.task)


def _with_own_file(
    plan: _Plan, proposals: Iterable[Proposal], reject: Callable[[str, str], None]
) -> Iterator[Proposal]:
    """What is to be written, and is of the right kind; of images with the same name, the first."""
    taken: set[str] = set()
    for proposal in proposals:
        if not proposal.is_wanted:
            continue
        file = plan.file_of(proposal)
        if (proposal.mask is not None) != (plan.header.task == "mask"):
            reject(proposal.image, f"is no proposal of the task {plan.header.task}")
        elif file in taken:
            reject(proposal.image, f"another image has the same file {os.path.basename(file)}")
        else:
            taken.add(file)
            yield proposal


def _planned(
    plan: _Plan, proposals: Iterable[Proposal], result: Applied, reject: Callable[[str, str], None]
) -> Iterator[_Change]:
    for proposal in proposals:
        try:
            change = plan.change(proposal)
        except FileNotFoundError:
            reject(proposal.image, "the image, or its proposed mask, does not exist any more")
        except (OSError, FileFault) as error:
            reject(proposal.image, str(error) if isinstance(error, FileFault) else error.strerror or str(error))
        else:
            if change is None:
                result.unchanged += 1
            else:
                yield change


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
