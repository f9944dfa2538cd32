"""All-reduce over all ranks: are the sums correct, and how fast is it?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from modules.preflight.cells import format_rate
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.preflight_report.report import Cell

SIZES = {False: (4 << 10, 1 << 20, 4 << 20), True: (4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)}
_REPEATS = 3
# Of the timeout for one task: sizes that would take longer on this link are left out.
_MAX_SHARE_OF_TIMEOUT = 0.25
_PERIOD = 251


def test_pattern(rank: int, count: int) -> Tensor:
    """Small whole numbers, float32 [count], whose sums over ranks are exact."""
    return torch.arange(count, dtype=torch.float32) % _PERIOD + rank + 1


def first_wrong(result: Tensor, world_size: int) -> str:
    """Describe the first wrong value of `result` [N], a sum of all ranks' patterns; empty if all are correct."""
    found = result.cpu()
    expected = (torch.arange(len(found), dtype=torch.float32) % _PERIOD + (world_size + 1) / 2) * world_size
    positions = torch.nonzero(found != expected)
    if not len(positions):
        return ""
    position = int(positions[0])
    values = f"{found[position]:g} instead of {expected[position]:g}"
    return f"{len(positions)} of {len(found)} values; value {position} is {values}"


def all_reduce(context: Context, size: int) -> Answer:
    """Task of every rank: all-reduce `size` bytes; returns the best time in seconds and any wrong value."""
    assert context.group is not None
    world, count = len(context.everyone), size // 4
    own = test_pattern(context.own.rank, count).to(context.device)
    best, wrong = float("inf"), ""
    for _ in range(_REPEATS):
        tensor = own.clone()
        started = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait(timedelta(seconds=context.timeout_s))
        tensor[0].item()
        best = min(best, time.perf_counter() - started)
        wrong = wrong or first_wrong(tensor, world)
    return {"seconds": best, "wrong": wrong}


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """Yield one cell for all sizes."""
    context = coordinator.context
    world = len(context.everyone)
    results: list[str] = []
    s_per_byte = 0.0
    for size in SIZES[context.thorough]:
        if s_per_byte * size * _REPEATS > context.timeout_s * _MAX_SHARE_OF_TIMEOUT:
            break
        answers = coordinator.ask(range(world), "all_reduce", context.timeout_s * 1.5, size=size)
        reds = judge(answers, size)
        if reds or len(answers) < world:
            return reds
        seconds = max(float(str(answer["seconds"])) for answer in answers.values())
        moved_mb = 2 * (world - 1) / world * size / 1e6
        is_large = size >= 1 << 20
        speed = format_rate(moved_mb / max(seconds, 1e-9)) if is_large else f"{seconds * 1e3:.2g} ms"
        results.append(f"{_format_size(size)} {speed}")
        s_per_byte = seconds / size if is_large else 0.0
    return [Cell("all-reduce", f"{world} ranks", "green", f"sums correct; {', '.join(results)}")]


def judge(answers: Mapping[int, Answer], size: int) -> list[Cell]:
    """Red cells for wrong sums and errors."""
    cells, bytes_ = [], _format_size(size)
    for rank, answer in answers.items():
        if error := answer.get("error"):
            cells.append(Cell("all-reduce", f"rank {rank}", "red", f"{bytes_}: {error}", FAILED))
        elif wrong := answer.get("wrong"):
            cells.append(Cell("all-reduce", f"rank {rank}", "red", f"wrong sum of {bytes_}: {wrong}", WRONG))
    return cells


def _format_size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


FAILED = (
    "The ranks connect but cannot exchange data: check the pairs below, firewalls between the machines, and "
    "GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME; with NCCL, try NCCL_P2P_DISABLE=1, then --backend gloo."
)
WRONG = (
    "Wrong sums mean faulty hardware or drivers; do not train with this. Test each GPU alone (device_ids), "
    "NCCL_P2P_DISABLE=1, and another driver version."
)
