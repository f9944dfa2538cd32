"""Images that turn out to be unreadable while they are trained on, because they are not cached."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from modules.config import DataError
from modules.data.index.problems import Problem, write_problems
from modules.distributed import RankGroup, parse_value
from modules.monitoring import Report
from modules.training.step.metrics import UNREADABLE

_TOLERATED, _TOLERATED_SHARE = 10, 0.01  # files; of the data set, if that is more


class UnreadableImages:
    """Collects them on each rank, and reports each file once; all ranks know of all of them.

    The run goes on without them: their place in a batch is filled with a grey image of weight 0. It ends when they are
    too many for that.
    """

    def __init__(
        self,
        images: int,
        ranks: RankGroup,
        report: Report,
        problems_file: Path,
        known: Sequence[Problem],
        *,
        may_go: bool = False,
    ) -> None:
        """`known`: the problems that `problems_file` lists already. `may_go`: `rescan` takes out what was removed."""
        tolerated = images if may_go else max(_TOLERATED, int(_TOLERATED_SHARE * images))
        self._limit = min(tolerated, images // 2)
        self._images = images
        self._ranks, self._report = ranks, report
        self._problems_file, self._known = problems_file, list(known)
        self._new: dict[str, Problem] = {}  # of this rank, by path
        self._found: dict[str, Problem] = {}  # on all ranks

    def add(self, problems: Iterable[Problem]) -> None:
        """What a batch of this rank lacks."""
        self._new.update({each.path: each for each in problems if each.path not in self._found})

    def metrics(self) -> dict[str, float]:
        """What the other ranks need to know of this one."""
        return {UNREADABLE: float(len(self._new))}

    def follow(self, sums: Mapping[str, float]) -> None:
        """If the sums of a sync say so, which are the same on all ranks, tell each other and report."""
        if sums[UNREADABLE]:
            self.exchange()

    def exchange(self) -> None:
        """Called by all ranks."""
        own = json.dumps({each.path: each.what for each in self._new.values()})
        new = {
            path: Problem(path, what)
            for text in self._ranks.gather("unreadable images", own)
            for path, what in parse_value(dict[str, str], text, "a list of unreadable images").items()
            if path not in self._found
        }
        self._new.clear()
        if not new:
            return
        self._found.update(new)
        self._ranks.run_on_rank0("problems", self._write)
        count = f"{len(new):,} images cannot" if len(new) > 1 else "1 image cannot"
        self._report.warning(
            f"{count} be read any more and are left out, for example {next(iter(new.values())).line()}. All are listed "
            f"in {self._problems_file}."
        )

    def _write(self) -> None:
        try:
            write_problems([*self._known, *self._found.values()], self._problems_file)
        except OSError as error:
            self._report.warning(f"{self._problems_file} cannot be written: {error}. Training continues.")

    @property
    def too_many(self) -> bool:
        """Whether `check` will raise."""
        return len(self._found) > self._limit

    def check(self) -> None:
        """Raises DataError, on all ranks, if the rest is not the data set any more."""
        if self.too_many:
            raise DataError(
                f"{len(self._found):,} of {self._images:,} images cannot be read any more, for example "
                f"{list(self._found.values())[-1].line()}. All are listed in {self._problems_file}; a backup was made.",
                "Bring them back, then --resume latest, or start a new run without them.",
            )
