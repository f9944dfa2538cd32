"""The start-up report in words: one table of all ranks, and a warning with advice for everything odd about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from modules.distributed.rank_facts import RankFacts, interfaces
from modules.distributed.roster import Roster
from modules.machine import link_table, without_peer_access

CLOCKS_APART_S = 5.0
SLOW_LINK_MB_S = 100.0
IDLE_WORTH_TELLING = 0.05
MEMORY_APART = 0.1
USED_BY_OTHERS = 0.2
# Their last number may differ without any effect on a result.
_LOOSE = frozenset({"Python", "driver"})


def roster_lines(roster: Roster) -> list[str]:
    """The table: one line a host where all its ranks are alike, else one line a group of like ranks; then versions."""
    rows = [["host", "ranks", "device", "memory", "free", "process ids"]]
    for host, ranks in roster.hosts.items():
        for _, group in groupby(ranks, key=lambda row: (row.model, row.memory_mib)):
            rows.append(_line(host, list(group)))
    return [*aligned(rows), _versions_line(roster)]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns, two spaces between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def roster_warnings(roster: Roster, global_batch_size: int | None) -> list[str]:
    """What may cost speed or correctness, one text each, with what to try."""
    return [
        *_mixed_models(roster),
        *_uneven_batch(len(roster.rows), global_batch_size),
        *_memory(roster),
        *_versions(roster),
        *_links(roster),
        *_network(roster),
        *_clocks(roster),
    ]


def _line(host: str, ranks: list[RankFacts]) -> list[str]:
    count = f"{len(ranks)} x " if len(ranks) > 1 else ""
    numbers = [row.rank for row in ranks]
    is_run = len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
    span = f"{numbers[0]}-{numbers[-1]}" if is_run else ",".join(map(str, numbers))
    free = min(row.free_mib for row in ranks)
    pids = [str(row.process_id) for row in ranks]
    return [
        shortened(host, 32),
        span,
        shortened(f"{count}{ranks[0].model}", 30),
        gib(ranks[0].memory_mib),
        gib(free),
        ", ".join(pids[:2]) + (f" +{len(pids) - 2}" if len(pids) > 2 else ""),
    ]


def gib(mib: int) -> str:
    """For example "79.2 GiB"."""
    return f"{mib / 1024:.1f} GiB"


def shortened(text: str, width: int) -> str:
    """At most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _versions_line(roster: Roster) -> str:
    first = roster.rows[0]
    names = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "driver", "Python": "Python"}
    told = [f"{word} {first.versions[name]}" for name, word in names.items() if name in first.versions]
    threads = sorted({row.threads for row in roster.rows})
    many = "thread" if threads == [1] else "threads"
    speed = "" if roster.link_mb_s is None else f"; {roster.link_mb_s:.0f} MB/s between hosts"
    return f"{first.backend}, {'-'.join(map(str, threads))} {many} a process; {', '.join(told)}{speed}"


def _mixed_models(roster: Roster) -> Iterator[str]:
    if not roster.speeds:
        return
    slow, fast = min(roster.speeds), max(roster.speeds)
    slowest, fastest = (roster.rows[roster.speeds.index(speed)] for speed in (slow, fast))
    counts = ", ".join(f"{count} x {model}" for model, count in Counter(row.model for row in roster.rows).items())
    if slow >= fast * (1 - IDLE_WORTH_TELLING):
        return
    lost = 1 - len(roster.speeds) * slow / sum(roster.speeds)
    yield (
        f"GPUs of several models ({counts}). All ranks take equal shares of a batch, so each step lasts as long as on "
        f"rank {slowest.rank} ({slowest.model} on {slowest.host}): rank {fastest.rank} ({fastest.model} on "
        f"{fastest.host}) is {fast / slow:.1f} x as fast and idles {1 - slow / fast:.0%} of each step, {lost:.0%} of "
        "all GPUs' work is lost. Choose like GPUs with device_ids, or leave the slow one out if the others are "
        "faster without it."
    )


def _uneven_batch(ranks: int, global_batch_size: int | None) -> Iterator[str]:
    if not global_batch_size:
        return
    most = -(-global_batch_size // ranks)
    idle = 1 - global_batch_size / (most * ranks)
    if idle < IDLE_WORTH_TELLING:
        return
    least = global_batch_size // ranks
    yield (
        f"global_batch_size {global_batch_size} over {ranks} ranks: some take {most} samples and others {least}, who "
        f"wait; {idle:.0%} of the devices' work is lost. {most * ranks} would use them fully"
        f"{f', and so would {least * ranks}' if least else ''}."
    )


def _memory(roster: Roster) -> Iterator[str]:
    on_gpus = [row for row in roster.rows if row.on_gpu]
    for row in on_gpus:
        if row.free_mib < row.memory_mib * (1 - USED_BY_OTHERS):
            yield (
                f"Of the {gib(row.memory_mib)} of rank {row.rank}'s {row.model} on {row.host} only {gib(row.free_mib)} "
                "are free: another program uses it. nvidia-smi shows which."
            )
    if not on_gpus:
        return
    least, most = (pick(on_gpus, key=lambda row: row.memory_mib) for pick in (min, max))
    if least.memory_mib < most.memory_mib * (1 - MEMORY_APART):
        yield (
            f"Rank {least.rank} on {least.host} has {gib(least.memory_mib)}, rank {most.rank} on {most.host} "
            f"{gib(most.memory_mib)}: batch_size must suit the smaller one."
        )


def _versions(roster: Roster) -> Iterator[str]:
    first = roster.rows[0]
    told = set()
    for row in roster.rows:
        apart = [name for name in first.versions if _version(first, name) != _version(row, name)]
        if row.code not in {"", first.code}:
            yield f"{row.host} runs other code than {first.host}, as --allow_differences lets it; results may vary."
        if not apart or row.host in told:
            continue
        told.add(row.host)
        lists = [", ".join(f"{name} {each.versions.get(name, 'absent')}" for name in apart) for each in (first, row)]
        yield (
            f"{first.host} has {lists[0]}, but {row.host} {lists[1]}. Results may differ and NCCL may refuse to "
            "connect: install the same versions everywhere (scripts/setup.sh installs the locked ones)."
        )


def _version(row: RankFacts, name: str) -> str:
    version = row.versions.get(name, "")
    return ".".join(version.split(".")[:2]) if name in _LOOSE else version


def _links(roster: Roster) -> Iterator[str]:
    for host, ranks in roster.hosts.items():
        links = ranks[0].links
        if len([row for row in ranks if row.on_gpu]) < 2 or not links:
            continue
        table = "".join(f"\n  {line}" for line in link_table(links))
        if closed := without_peer_access(links):
            pairs = ", ".join(f"{link.first} and {link.second}" for link in closed[:4])
            more = f" and {len(closed) - 4} more pairs" if len(closed) > 4 else ""
            yield (
                f"On {host} the GPUs {pairs}{more} cannot read each other's memory: gradients take the way through "
                "main memory. In a virtual machine turn ACS off; otherwise prefer GPUs that can (device_ids), or a "
                f"larger gradient_accumulation_steps.{table}"
            )
        elif not all(link.nvlinks for link in links):
            yield (
                f"On {host} not all GPUs are joined by NVLink: the exchange of gradients goes at the speed of the "
                f"slowest way. Prefer joined GPUs (device_ids), or a larger gradient_accumulation_steps.{table}"
            )


def _network(roster: Roster) -> Iterator[str]:
    if roster.link_mb_s is None or roster.link_mb_s >= SLOW_LINK_MB_S:
        return
    chosen = interfaces() or "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are not set"
    yield (
        f"The hosts exchange only {roster.link_mb_s:.1f} MB/s ({chosen}): 100 million trained weights take "
        f"{400 / roster.link_mb_s:.0f} s a step. Choose the faster network interface if there is one; else train an "
        "adapter, raise gradient_accumulation_steps, or set gradient_compression."
    )


def _clocks(roster: Roster) -> Iterator[str]:
    first = roster.rows[0]
    for host, ranks in roster.hosts.items():
        apart = ranks[0].clock - first.clock
        if abs(apart) > CLOCKS_APART_S:
            ahead = "ahead of" if apart > 0 else "behind"
            yield (
                f"The clock of {host} is {abs(apart):.0f} s {ahead} that of {first.host}: times in the logs do not fit "
                "together. Turn on time synchronisation (timedatectl set-ntp true)."
            )
