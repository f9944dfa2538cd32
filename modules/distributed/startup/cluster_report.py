"""The start-up report: a table of all ranks, and warnings with advice about what costs speed or correctness."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from modules.distributed.startup.cluster_info import ClusterInfo
from modules.distributed.startup.rank_info import RankInfo
from modules.machine import link_table, without_peer_access

CLOCK_DIFFERENCE_S = 5.0
SLOW_LINK_MB_S = 100.0
MIN_REPORTED_IDLE = 0.05
MEMORY_DIFFERENCE = 0.1
USED_BY_OTHERS = 0.2
# Their patch versions do not affect results.
_PATCH_IGNORED = frozenset({"Python", "driver"})


def cluster_lines(cluster_info: ClusterInfo) -> list[str]:
    """The table: one line per host and per group of ranks with the same device; then a line of versions."""
    rows = [["host", "ranks", "device", "memory", "free", "process ids"]]
    for host, ranks in cluster_info.hosts.items():
        for _, group in groupby(ranks, key=lambda row: (row.model, row.memory_mib)):
            rows.append(_line(host, list(group)))
    return [*align_columns(rows), _versions_line(cluster_info)]


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row, with two spaces between the columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def cluster_warnings(
    cluster_info: ClusterInfo, global_batch_size: int | None, *, equal_shares: bool = True, fully_sharded: bool = False
) -> list[str]:
    """One text with advice for each problem found. `equal_shares`: all ranks take as many samples of a step.
    `fully_sharded`: the hosts exchange weights as well."""
    of_equal_shares = (
        *_mixed_models(cluster_info),
        *_uneven_batch(len(cluster_info.rows), global_batch_size),
        *_less_memory(cluster_info),
    )
    return [
        *(of_equal_shares if equal_shares else ()),
        *_memory(cluster_info),
        *_versions(cluster_info),
        *_links(cluster_info),
        *_network(cluster_info, fully_sharded=fully_sharded),
        *_clocks(cluster_info),
    ]


def _line(host: str, ranks: list[RankInfo]) -> list[str]:
    count = f"{len(ranks)} x " if len(ranks) > 1 else ""
    numbers = [row.rank for row in ranks]
    is_run = len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
    span = f"{numbers[0]}-{numbers[-1]}" if is_run else ",".join(map(str, numbers))
    free = min(row.free_mib for row in ranks)
    pids = [str(row.process_id) for row in ranks]
    return [
        shorten(host, 32),
        span,
        shorten(f"{count}{ranks[0].model}", 30),
        gib(ranks[0].memory_mib),
        gib(free),
        ", ".join(pids[:2]) + (f" +{len(pids) - 2}" if len(pids) > 2 else ""),
    ]


def gib(mib: int) -> str:
    """For example "79.2 GiB"."""
    return f"{mib / 1024:.1f} GiB"


def shorten(text: str, width: int) -> str:
    """At most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _versions_line(cluster_info: ClusterInfo) -> str:
    first = cluster_info.rows[0]
    names = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "driver", "Python": "Python"}
    versions = [f"{word} {first.versions[name]}" for name, word in names.items() if name in first.versions]
    threads = sorted({row.threads for row in cluster_info.rows})
    many = "thread" if threads == [1] else "threads"
    speed = "" if cluster_info.link_mb_s is None else f"; {cluster_info.link_mb_s:.0f} MB/s between hosts"
    return f"{first.backend}, {'-'.join(map(str, threads))} {many} per process; {', '.join(versions)}{speed}"


def _mixed_models(cluster_info: ClusterInfo) -> Iterator[str]:
    if not cluster_info.speeds:
        return
    slow, fast = min(cluster_info.speeds), max(cluster_info.speeds)
    slowest, fastest = (cluster_info.rows[cluster_info.speeds.index(speed)] for speed in (slow, fast))
    counts = ", ".join(f"{count} x {model}" for model, count in Counter(row.model for row in cluster_info.rows).items())
    if slow >= fast * (1 - MIN_REPORTED_IDLE):
        return
    lost = 1 - len(cluster_info.speeds) * slow / sum(cluster_info.speeds)
    yield (
        f"Mixed GPU models ({counts}). All ranks process equal shares of a batch, so each step takes as long as on "
        f"rank {slowest.rank} ({slowest.model} on {slowest.host}): rank {fastest.rank} ({fastest.model} on "
        f"{fastest.host}) is {fast / slow:.1f} x as fast and idles {1 - slow / fast:.0%} of each step; {lost:.0%} of "
        "the total GPU capacity is wasted. Set balance to auto, which gives each rank samples by its speed, or select "
        "identical GPUs with device_ids."
    )


def _uneven_batch(ranks: int, global_batch_size: int | None) -> Iterator[str]:
    if not global_batch_size:
        return
    most = -(-global_batch_size // ranks)
    idle = 1 - global_batch_size / (most * ranks)
    if idle < MIN_REPORTED_IDLE:
        return
    least = global_batch_size // ranks
    yield (
        f"global_batch_size {global_batch_size} on {ranks} ranks: some process {most} samples and others {least}, "
        f"which then wait; {idle:.0%} of the devices' capacity is wasted. {most * ranks} would use them fully"
        f"{f', and so would {least * ranks}' if least else ''}."
    )


def _memory(cluster_info: ClusterInfo) -> Iterator[str]:
    on_gpus = [row for row in cluster_info.rows if row.on_gpu]
    for row in on_gpus:
        if row.free_mib < row.memory_mib * (1 - USED_BY_OTHERS):
            yield (
                f"Only {gib(row.free_mib)} of {gib(row.memory_mib)} are free on rank {row.rank}'s {row.model} on "
                f"{row.host}: another program uses it. nvidia-smi shows which."
            )


def _less_memory(cluster_info: ClusterInfo) -> Iterator[str]:
    on_gpus = [row for row in cluster_info.rows if row.on_gpu]
    if not on_gpus:
        return
    least, most = (pick(on_gpus, key=lambda row: row.memory_mib) for pick in (min, max))
    if least.memory_mib < most.memory_mib * (1 - MEMORY_DIFFERENCE):
        yield (
            f"Rank {least.rank} on {least.host} has {gib(least.memory_mib)}, rank {most.rank} on {most.host} "
            f"{gib(most.memory_mib)}: batch_size must fit the smaller one."
        )


def _versions(cluster_info: ClusterInfo) -> Iterator[str]:
    first = cluster_info.rows[0]
    refused = " and NCCL may refuse to connect" if first.backend == "nccl" else ""
    reported = set()
    for row in cluster_info.rows:
        differing = [name for name in first.versions if _version(first, name) != _version(row, name)]
        if row.code not in {"", first.code}:
            yield f"{row.host} runs different code from {first.host}, as --allow_differences permits; results may vary."
        if not differing or row.host in reported:
            continue
        reported.add(row.host)
        here, there = (
            ", ".join(f"{name} {r.versions.get(name, 'absent')}" for name in differing) for r in (first, row)
        )
        yield (
            f"{first.host} has {here}, but {row.host} has {there}. Results may differ{refused}: "
            "install the same versions everywhere (scripts/setup.sh installs the locked ones)."
        )


def _version(row: RankInfo, name: str) -> str:
    version = row.versions.get(name, "")
    return ".".join(version.split(".")[:2]) if name in _PATCH_IGNORED else version


def _links(cluster_info: ClusterInfo) -> Iterator[str]:
    for host, ranks in cluster_info.hosts.items():
        links = ranks[0].links
        if len([row for row in ranks if row.on_gpu]) < 2 or not links:
            continue
        table = "".join(f"\n  {line}" for line in link_table(links))
        if closed := without_peer_access(links):
            pairs = ", ".join(f"{link.first} and {link.second}" for link in closed[:4])
            more = f" and {len(closed) - 4} more pairs" if len(closed) > 4 else ""
            yield (
                f"On {host}, GPUs {pairs}{more} have no peer-to-peer access; transfers go through host memory. In a "
                "virtual machine, disable ACS; otherwise prefer GPUs with peer access (device_ids), or a larger "
                f"gradient_accumulation_steps.{table}"
            )
        elif not all(link.nvlinks for link in links):
            yield (
                f"On {host}, not all GPUs are connected by NVLink: gradient sync runs at the speed of the slowest "
                f"link. Prefer connected GPUs (device_ids), or a larger gradient_accumulation_steps.{table}"
            )


def _network(cluster_info: ClusterInfo, *, fully_sharded: bool) -> Iterator[str]:
    if cluster_info.link_mb_s is None or cluster_info.link_mb_s >= SLOW_LINK_MB_S:
        return
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    selected = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    interfaces = selected or f"{' and '.join(names)} are not set"
    advice = "train an adapter, raise gradient_accumulation_steps, or set gradient_compression"
    if fully_sharded:
        advice = "set fsdp_replicate to machines, so that they exchange no weights, only gradients"
    yield (
        f"The hosts exchange only {cluster_info.link_mb_s:.1f} MB/s ({interfaces}): 100 million trained weights take "
        f"{400 / cluster_info.link_mb_s:.0f} s per step. Use a faster network interface if there is one; otherwise "
        f"{advice}."
    )


def _clocks(cluster_info: ClusterInfo) -> Iterator[str]:
    first = cluster_info.rows[0]
    for host, ranks in cluster_info.hosts.items():
        ahead_s = ranks[0].clock - first.clock
        if abs(ahead_s) > CLOCK_DIFFERENCE_S:
            way = "ahead of" if ahead_s > 0 else "behind"
            yield (
                f"The clock of {host} is {abs(ahead_s):.0f} s {way} that of {first.host}: timestamps in the logs do "
                "not match. Turn on time synchronisation (timedatectl set-ntp true)."
            )
