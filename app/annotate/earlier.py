"""Proposals that were made before: found on disk, with what they are of."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path, PurePath

from app.annotate.rows import TITLES
from modules.annotation import DEFAULT_FOLDER, Header, ProposalSet, proposal_sets
from modules.config import ConfigError


@dataclass(frozen=True)
class EarlierSet:
    """A set of proposals that can be read."""

    proposals: ProposalSet
    header: Header
    is_written: bool

    @property
    def title(self) -> str:
        """Such as "Captions of cats, 3 May 14:05"."""
        made = time.localtime(self.header.made)
        when = f"{made.tm_mday} {time.strftime('%b %H:%M', made)}"
        return f"{TITLES[self.header.task]} of {PurePath(self.header.folder).name}, {when}"

    @property
    def detail(self) -> str:
        """The model, and whether they were written."""
        return f"{PurePath(self.header.model).name}, {'written' if self.is_written else 'not written yet'}"


def earlier_sets(most: int = 12) -> list[EarlierSet]:
    """The newest sets in the current folder's folder of proposals, newest first. Reads files: off the Tk thread."""
    found = []
    for proposals in proposal_sets(Path(DEFAULT_FOLDER)):
        try:
            found.append(EarlierSet(proposals, proposals.header(), proposals.state == "written"))
        except ConfigError:
            continue  # damaged, or made by a newer version
    return sorted(found, key=lambda each: -each.header.made)[:most]
