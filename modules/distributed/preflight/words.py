"""Words and cells that several checks share."""

from __future__ import annotations

from collections.abc import Iterable

from modules.distributed.preflight.conductor import Conductor
from modules.distributed.sign_in import Member
from modules.run.checkup import Cell

GONE = "It ended, hangs, or its machine cannot be reached any more: look at its own output and at the network cable."


def amount(size: int) -> str:
    """For example "4 KiB" or "16 MiB"."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def rate(mb_s: float) -> str:
    """For example "11.5 MB/s" or "2.1 GB/s"."""
    return f"{mb_s / 1000:.1f} GB/s" if mb_s >= 1000 else f"{mb_s:.3g} MB/s"


def speed(size: int, moved: float, seconds: float) -> str:
    """What was sent, and how fast."""
    return f"{amount(size)} {rate(moved / 1e6 / max(seconds, 1e-9))}"


def named(member: Member) -> str:
    """For example "rank 3 on beta"."""
    return f"rank {member.rank} on {member.host}"


def lost_cells(check: str, conductor: Conductor) -> list[Cell]:
    """A red cell for each rank that was lost and not told yet."""
    told = conductor.told
    news = [member for member in conductor.context.everyone if member.rank in conductor.lost.keys() - told]
    told.update(member.rank for member in news)
    return [Cell(check, named(member), "red", conductor.lost[member.rank], GONE) for member in news]


def hosts_of(members: Iterable[Member]) -> str:
    """For example "alpha, beta"."""
    return ", ".join(dict.fromkeys(member.host for member in members))
