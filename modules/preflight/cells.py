"""Text that several checks share."""

from __future__ import annotations

from collections.abc import Iterable

from modules.distributed.startup.member import Member


def format_rate(mb_s: float) -> str:
    """For example "11.5 MB/s" or "2.1 GB/s"."""
    return f"{mb_s / 1000:.1f} GB/s" if mb_s >= 1000 else f"{mb_s:.3g} MB/s"


def hosts_of(members: Iterable[Member]) -> str:
    """For example "alpha, beta"."""
    return ", ".join(dict.fromkeys(member.host for member in members))
