"""Every pair of ranks, one after the other: do values arrive as sent, how long does one take, how many a second?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import combinations

import torch
import torch.distributed as dist
from torch import Tensor

from modules.distributed.preflight.all_reduce import pattern
from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.words import lost_cells, rate
from modules.distributed.sign_in import Member
from modules.run.checkup import Cell

SIZES = {False: 1 << 20, True: 16 << 20}
_PINGS = 20
_MOST_IN_MATRIX = 16

Pair = tuple[int, int]


def pair(context: Context, first: int, second: int, size: int) -> Answer:
    """The task of both ranks: small messages there and back, then a large one each way, whose values are checked."""
    rank, count = context.own.rank, size // 4
    other = second if rank == first else first
    limit = timedelta(seconds=context.patience_s)
    small = torch.zeros(1, device=context.device)
    turn = _in_turn(rank == first, other, limit)
    turn(small, small)
    began = time.perf_counter()
    for _ in range(_PINGS):
        turn(small, small)
    latency_s = (time.perf_counter() - began) / _PINGS / 2
    sent, got = pattern(rank, count).to(context.device), torch.zeros(count, device=context.device)
    began = time.perf_counter()
    turn(sent, got)
    seconds = time.perf_counter() - began
    wrong = torch.nonzero(got.cpu() != pattern(other, count))
    return {
        "latency_ms": latency_s * 1e3,
        "mb_s": 2 * size / 1e6 / max(seconds, 1e-9),
        "wrong": f"{len(wrong)} of {count} values" if len(wrong) else "",
    }


def check(conductor: Conductor) -> Iterable[Cell]:
    """One cell for all pairs that are well, and a red one for each other."""
    size = SIZES[conductor.context.thorough]
    found: dict[Pair, Answer] = {}
    cells: list[Cell] = []
    for pair_ in combinations([member.rank for member in conductor.context.everyone], 2):
        if not conductor.lost.keys().isdisjoint(pair_):
            continue
        answers = conductor.ask(pair_, "pair", first=pair_[0], second=pair_[1], size=size)
        cells += lost_cells("pairs", conductor)
        if len(answers) == 2:
            found[pair_] = judge(answers)
    conductor.matrices.extend(matrices(found, conductor.context.everyone))
    return [*cells, *pair_cells(found, conductor.context.everyone)]


def judge(answers: Mapping[int, Answer]) -> Answer:
    """What both sides say, as one: the slower figures, the first error, where values were wrong."""
    one, other = answers.values()
    joint: Answer = {"error": one.get("error") or other.get("error") or ""}
    for rank, answer in answers.items():
        if answer.get("wrong"):
            joint["error"] = joint["error"] or f"wrong values at rank {rank}: {answer['wrong']}"
    if not joint["error"]:
        joint["latency_ms"] = max(float(str(answer["latency_ms"])) for answer in answers.values())
        joint["mb_s"] = min(float(str(answer["mb_s"])) for answer in answers.values())
    return joint


def pair_cells(found: Mapping[Pair, Answer], everyone: tuple[Member, ...]) -> list[Cell]:
    """The cells for what was found of each pair."""
    good = {pair_: answer for pair_, answer in found.items() if not answer["error"]}
    cells = [
        Cell("pairs", f"ranks {a}, {b}", "red", f"{_way((a, b), everyone)}: {answer['error']}", ADVICE)
        for (a, b), answer in found.items()
        if answer["error"]
    ]
    if good:
        slow = min(good, key=lambda pair_: float(str(good[pair_]["mb_s"])))
        latencies = [float(str(answer["latency_ms"])) for answer in good.values()]
        value = f"values right; at most {max(latencies):.2g} ms, at least {rate(float(str(good[slow]['mb_s'])))}"
        where = f" (ranks {slow[0]} and {slow[1]}, {_way(slow, everyone)})"
        value += where if len(good) > 1 else ""
        mb_s = float(str(good[slow]["mb_s"]))
        is_slow = everyone[slow[0]].host != everyone[slow[1]].host and mb_s < SLOW_MB_S
        count = f"{len(good)} pair{'s' if len(good) > 1 else ''}"
        hint = SLOW.format(seconds=400 / mb_s) if is_slow else ""
        cells.append(Cell("pairs", count, "yellow" if is_slow else "green", value, hint))
    return cells


def matrices(found: Mapping[Pair, Answer], everyone: tuple[Member, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Latency and speed of all pairs, where that is more than one pair and still fits a terminal."""
    if len(found) < 2 or len(everyone) > _MOST_IN_MATRIX:
        return []
    return [
        ("Latency of each pair in ms", _matrix(found, everyone, "latency_ms")),
        ("Speed of each pair in MB/s", _matrix(found, everyone, "mb_s")),
    ]


def _matrix(found: Mapping[Pair, Answer], everyone: tuple[Member, ...], figure: str) -> tuple[str, ...]:
    def cell(a: int, b: int) -> str:
        value = found.get((min(a, b), max(a, b)), {}).get(figure)
        if a == b or value is None:
            return "." if a == b else "-"
        number = float(str(value))
        return f"{number:.0f}" if number >= 100 else f"{number:.2g}"

    ranks = [member.rank for member in everyone]
    rows = [["", *map(str, ranks)], *([f"{m.rank} {m.host}", *(cell(m.rank, b) for b in ranks)] for m in everyone)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple("  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _way(pair_: Pair, everyone: tuple[Member, ...]) -> str:
    hosts = dict.fromkeys(everyone[rank].host for rank in pair_)
    return f"on {next(iter(hosts))}" if len(hosts) == 1 else " - ".join(hosts)


def _in_turn(begins: bool, other: int, limit: timedelta) -> Callable[[Tensor, Tensor], None]:
    """A function that sends one tensor and receives another, the one that `begins` first."""

    def send(tensor: Tensor) -> None:
        work = dist.isend(tensor, other)
        assert work is not None
        work.wait(limit)

    def receive(tensor: Tensor) -> None:
        work = dist.irecv(tensor, other)
        assert work is not None
        work.wait(limit)
        tensor[0].item()

    def turn(sent: Tensor, got: Tensor) -> None:
        if begins:
            send(sent)
            receive(got)
        else:
            received = torch.empty_like(got)
            receive(received)
            send(sent)
            got.copy_(received)

    return turn


SLOW_MB_S = 100.0
SLOW = (
    "A slow network: 100 million trained weights take about {seconds:.0f} s a step. Use the faster interface if there "
    "is one (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), train an adapter, or set gradient_compression."
)
ADVICE = (
    "These two ranks cannot exchange data: a firewall between them (open all ports), the wrong network interface "
    "(GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME), or broken GPU links (NCCL_P2P_DISABLE=1 shows it)."
)
