"""Ranks, names and errors as text for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def format_ranks(ranks: Iterable[int]) -> str:
    """For example "rank 1", "ranks 2 and 3" or "ranks 4 to 7"."""
    found = list(ranks)
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"ranks {found[0]} to {found[-1]}"
    return f"ranks {join_with_and(map(str, found))}"


def join_with_and(items: Iterable[str]) -> str:
    """For example "a, b and c"."""
    *first, last = list(items) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def first_names(names: Sequence[str], count: int) -> str:
    """At most `count` names, and how many more there are: "a, b and 5 more"."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"


def error_summary(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
