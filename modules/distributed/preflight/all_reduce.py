"""All-reduce over all ranks: are the sums right, and how fast does it go?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.words import amount, lost_cells, speed
from modules.run.checkup import Cell

SIZES = {False: (4 << 10, 1 << 20, 4 << 20), True: (4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)}
_REPEATS = 3
# Of the patience for one question: a size that would take longer on this link is left out.
_SHARE_OF_PATIENCE = 0.25
_PERIOD = 251


def pattern(rank: int, count: int) -> Tensor:
    """[count] small whole numbers, whose sums are exact."""
    return torch.arange(count, dtype=torch.float32) % _PERIOD + rank + 1


def first_wrong(result: Tensor, world_size: int) -> str:
    """Which value of a sum over all ranks' patterns is wrong, and how; empty where all are right."""
    found = result.cpu()
    right = (torch.arange(len(found), dtype=torch.float32) % _PERIOD + (world_size + 1) / 2) * world_size
    places = torch.nonzero(found != right)
    if not len(places):
        return ""
    place = int(places[0])
    return f"{len(places)} of {len(found)} values; value {place} is {found[place]:g} instead of {right[place]:g}"


def all_reduce(context: Context, size: int) -> Answer:
    """The task of every rank."""
    assert context.group is not None
    world, count = len(context.everyone), size // 4
    own = pattern(context.own.rank, count).to(context.device)
    best, wrong = float("inf"), ""
    for _ in range(_REPEATS):
        tensor = own.clone()
        began = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait(timedelta(seconds=context.patience_s))
        tensor[0].item()
        best = min(best, time.perf_counter() - began)
        wrong = wrong or first_wrong(tensor, world)
    return {"seconds": best, "wrong": wrong}


def check(conductor: Conductor) -> Iterable[Cell]:
    """One cell for all sizes."""
    context = conductor.context
    world = len(context.everyone)
    told: list[str] = []
    s_per_byte = 0.0
    for size in SIZES[context.thorough]:
        if s_per_byte * size * _REPEATS > context.patience_s * _SHARE_OF_PATIENCE:
            break
        answers = conductor.ask(range(world), "all_reduce", context.patience_s * 1.5, size=size)
        reds = [*lost_cells("all-reduce", conductor), *judge(answers, size)]
        if reds or len(answers) < world:
            return reds
        seconds = max(float(str(answer["seconds"])) for answer in answers.values())
        moved = 2 * (world - 1) / world * size
        told.append(f"{amount(size)} {seconds * 1e3:.2g} ms" if size < 1 << 20 else speed(size, moved, seconds))
        s_per_byte = seconds / size if size >= 1 << 20 else 0.0
    return [Cell("all-reduce", f"{world} ranks", "green", f"sums right; {', '.join(told)}")]


def judge(answers: Mapping[int, Answer], size: int) -> list[Cell]:
    """Red cells for sums that are wrong and for errors."""
    cells = []
    for rank, answer in answers.items():
        if error := answer.get("error"):
            cells.append(Cell("all-reduce", f"rank {rank}", "red", f"{amount(size)}: {error}", FAILED))
        elif wrong := answer.get("wrong"):
            cells.append(Cell("all-reduce", f"rank {rank}", "red", f"wrong sum of {amount(size)}: {wrong}", WRONG))
    return cells


FAILED = (
    "The ranks connect but cannot exchange data: look at the pairs below, at firewalls between the machines, and at "
    "GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME; with NCCL try NCCL_P2P_DISABLE=1, then --backend gloo."
)
WRONG = (
    "Wrong sums mean broken hardware or drivers; do not train with this. Try each GPU alone (device_ids), "
    "NCCL_P2P_DISABLE=1, and another driver."
)
