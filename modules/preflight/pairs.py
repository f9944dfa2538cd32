"""Every pair of ranks in turn: do values arrive as sent, and at what latency and bandwidth?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import combinations

import torch
import torch.distributed as dist
from torch import Tensor

from modules.distributed.startup.cluster_report import SLOW_LINK_MB_S, align_columns
from modules.distributed.startup.member import Member
from modules.preflight.all_reduce import test_pattern
from modules.preflight.cells import format_rate
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.preflight_report.report import Cell

SIZES = {False: 1 << 20, True: 16 << 20}
_PINGS = 20
_MAX_IN_MATRIX = 16

Pair = tuple[int, int]


def exchange(context: Context, first: int, second: int, size: int) -> Answer:
    """Task of both ranks: ping-pong with a small message, then `size` bytes each way, with the values checked."""
    rank, count = context.own.rank, size // 4
    other = second if rank == first else first
    limit = timedelta(seconds=context.timeout_s)
    small = torch.zeros(1, device=context.device)
    swap = _alternate(rank == first, other, limit)
    swap(small, small)
    started = time.perf_counter()
    for _ in range(_PINGS):
        swap(small, small)
    latency_s = (time.perf_counter() - started) / _PINGS / 2
    sent, received = test_pattern(rank, count).to(context.device), torch.zeros(count, device=context.device)
    started = time.perf_counter()
    swap(sent, received)
    seconds = time.perf_counter() - started
    wrong = torch.nonzero(received.cpu() != test_pattern(other, count))
    return {
        "latency_ms": latency_s * 1e3,
        "mb_s": 2 * size / 1e6 / max(seconds, 1e-9),
        "wrong": f"{len(wrong)} of {count} values" if len(wrong) else "",
    }


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """One cell for all good pairs, and a red one for each of the others."""
    size, everyone = SIZES[coordinator.context.thorough], coordinator.context.everyone
    found: dict[Pair, Answer] = {}
    for pair in combinations(range(len(everyone)), 2):
        if coordinator.lost.keys().isdisjoint(pair):
            answers = coordinator.ask(pair, "exchange", first=pair[0], second=pair[1], size=size)
            if len(answers) == 2:
                found[pair] = judge(answers)
    coordinator.matrices.extend(matrices(found, everyone))
    return pair_cells(found, everyone)


def judge(answers: Mapping[int, Answer]) -> Answer:
    """Both sides' answers combined: the worse figures, the first error, and which values were wrong."""
    errors = [answer["error"] for answer in answers.values() if answer.get("error")]
    errors += [f"wrong values at rank {rank}: {a['wrong']}" for rank, a in answers.items() if a.get("wrong")]
    if errors:
        return {"error": errors[0]}
    latency_ms = max(float(str(answer["latency_ms"])) for answer in answers.values())
    return {"error": "", "latency_ms": latency_ms, "mb_s": min(float(str(a["mb_s"])) for a in answers.values())}


def pair_cells(found: Mapping[Pair, Answer], everyone: tuple[Member, ...]) -> list[Cell]:
    """The cells for the results of all pairs."""
    good = {pair: answer for pair, answer in found.items() if not answer["error"]}
    cells = [
        Cell("pairs", f"ranks {a}, {b}", "red", f"{_hosts_of_pair((a, b), everyone)}: {answer['error']}", ADVICE)
        for (a, b), answer in found.items()
        if answer["error"]
    ]
    if good:
        slow = min(good, key=lambda pair: float(str(good[pair]["mb_s"])))
        mb_s = float(str(good[slow]["mb_s"]))
        latency_ms = max(float(str(answer["latency_ms"])) for answer in good.values())
        value = f"values correct; at most {latency_ms:.2g} ms, at least {format_rate(mb_s)}"
        if len(good) > 1:
            value += f" (ranks {slow[0]} and {slow[1]}, {_hosts_of_pair(slow, everyone)})"
        is_slow = everyone[slow[0]].host != everyone[slow[1]].host and mb_s < SLOW_LINK_MB_S
        count = f"{len(good)} pair{'s' if len(good) > 1 else ''}"
        hint = SLOW.format(seconds=400 / mb_s) if is_slow else ""
        cells.append(Cell("pairs", count, "yellow" if is_slow else "green", value, hint))
    return cells


def matrices(found: Mapping[Pair, Answer], everyone: tuple[Member, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Latency and bandwidth of all pairs, if there are several and they fit a terminal."""
    if len(found) < 2 or len(everyone) > _MAX_IN_MATRIX:
        return []
    return [
        ("Latency of each pair in ms", _matrix(found, everyone, "latency_ms")),
        ("Bandwidth of each pair in MB/s", _matrix(found, everyone, "mb_s")),
    ]


def _matrix(found: Mapping[Pair, Answer], everyone: tuple[Member, ...], metric: str) -> tuple[str, ...]:
    def cell(a: int, b: int) -> str:
        value = found.get((min(a, b), max(a, b)), {}).get(metric)
        if a == b or value is None:
            return "." if a == b else "-"
        number = float(str(value))
        return f"{number:.0f}" if number >= 100 else f"{number:.2g}"

    ranks = [member.rank for member in everyone]
    rows = [["", *map(str, ranks)], *([f"{m.rank} {m.host}", *(cell(m.rank, b) for b in ranks)] for m in everyone)]
    return tuple(align_columns(rows))


def _hosts_of_pair(pair: Pair, everyone: tuple[Member, ...]) -> str:
    hosts = dict.fromkeys(everyone[rank].host for rank in pair)
    return f"on {next(iter(hosts))}" if len(hosts) == 1 else " - ".join(hosts)


def _alternate(sends_first: bool, other: int, limit: timedelta) -> Callable[[Tensor, Tensor], None]:
    """A function that sends its first argument [N] and fills its second [N] with what the other rank sends."""

    def swap(sent: Tensor, received: Tensor) -> None:
        buffer = torch.empty_like(received)  # `sent` and `received` may be the same tensor
        for is_send in (sends_first, not sends_first):
            work = dist.isend(sent, other) if is_send else dist.irecv(buffer, other)
            assert work is not None
            work.wait(limit)
        received.copy_(buffer)
        received[0].item()  # wait for the GPU

    return swap


SLOW = (
    "Slow network: 100 million trained weights take about {seconds:.0f} s per step. Use a faster interface if there "
    "is one (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), train an adapter, or set gradient_compression."
)
ADVICE = (
    "These two ranks cannot exchange data: a firewall between them (open all ports), the wrong network interface "
    "(GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME), or faulty GPU links (NCCL_P2P_DISABLE=1 confirms it)."
)
