"""How many of a step's samples each rank takes: a pure function of a small table, which all ranks have."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Final, TypeAlias

_MOST_LISTED: Final = 16  # ranks in a line
ShareTable: TypeAlias = tuple[float, ...]  # the weight of each rank, above 0; empty: equal ones


@lru_cache(maxsize=256)
def share_counts(samples: int, ranks: int, table: ShareTable = ()) -> tuple[int, ...]:
    """The samples of each rank, which add up to `samples`.

    If a rank takes 1 / weight for a sample, no other whole numbers let the last one end earlier. Equal weights give
    each rank as many, or the last ones one more.
    """
    if len(set(table)) <= 1:
        return tuple(last - first for first, last in pairwise(samples * rank // ranks for rank in range(ranks + 1)))
    weights = [Fraction(weight) for weight in table]
    total = sum(weights)
    counts = [int(samples * weight // total) for weight in weights]
    # when a rank ends with one sample more; of two that end together, the smaller one is nearer its weight
    ends = [((counts[rank] + 1) / weight, weight, rank) for rank, weight in enumerate(weights)]
    heapify(ends)
    for _ in range(samples - sum(counts)):
        _, weight, rank = ends[0]
        counts[rank] += 1
        heapreplace(ends, ((counts[rank] + 1) / weight, weight, rank))
    return tuple(counts)


def describe_shares(samples: int, ranks: int, table: ShareTable) -> str:
    """ "3 + 1 of 4 samples; 2.9 : 1.1 would be ideal"."""
    counts, weights = share_counts(samples, ranks, table), table or (1.0,) * ranks
    if ranks > _MOST_LISTED:
        return f"{min(counts)} to {max(counts)} each of {samples} samples"
    ideal = [samples * weight / sum(weights) for weight in weights]
    found = f"{' + '.join(map(str, counts))} of {samples} samples"
    if all(abs(count - share) < 0.05 for count, share in zip(counts, ideal, strict=True)):
        return found
    return f"{found}; {' : '.join(f'{share:.1f}' for share in ideal)} would be ideal"


class Shares:
    """The tables of a run, each valid from a step on. Every rank has to have the same ones."""

    def __init__(self, table: ShareTable = ()) -> None:
        self._tables: list[tuple[int, ShareTable]] = [(0, table)]  # by the step from which on they are valid
        self._first_free = 0  # no step from here on has been divided yet

    @property
    def first(self) -> ShareTable:
        """The table that the run began with."""
        return self._tables[0][1]

    @property
    def latest(self) -> ShareTable:
        """The table of the steps to come."""
        return self._tables[-1][1]

    def divide(self, step: int) -> ShareTable:
        """The table of that step of the run, which is about to be divided by it."""
        self._first_free = max(self._first_free, step + 1)
        return next(table for first, table in reversed(self._tables) if first <= step)

    def change(self, step: int, table: ShareTable) -> None:
        """Use `table` from that step of the run on, which no rank may have divided yet."""
        assert self._tables[-1][0] < step >= self._first_free, f"step {step} has been divided already"
        self._tables.append((step, table))
