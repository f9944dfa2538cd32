"""How fast each rank computes while the others compute, too, and what sharing the steps by that would gain."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch

from modules.config import AUTO, EQUAL, TrainConfig, balance_numbers, effective_batch
from modules.data.loading.shares import describe_shares, share_counts
from modules.distributed.startup.member import Member
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.preflight_report.report import Cell
from modules.training.device.precision import Precision, can_use_tf32

_SECONDS: Final = 0.5
_PRODUCT_S: Final = 0.01  # so long that starting it does not count
_FIRST_SIDE, _LARGEST_SIDE = 256, 8192
_UNEQUAL: Final = 1.1  # times faster: what `balance: auto` shares by


def measure_speed(context: Context) -> Answer:
    """Task of each rank: TFLOP/s of products of square matrices in the run's precision, in the fastest of many."""
    config, device = context.config, context.device
    precision = Precision(config.precision, device, tf32=can_use_tf32(config.precision, device))
    side, best, now = _FIRST_SIDE, 0.0, time.perf_counter()
    factor = torch.randn(side, side, device=device).to(precision.computing)
    end = now + _SECONDS
    while now < end:
        (factor @ factor)[0, 0].item()  # which waits for the device
        started, now = now, time.perf_counter()
        best = max(best, 2 * side**3 / (now - started))
        if now - started < _PRODUCT_S and side < _LARGEST_SIDE:
            side *= 2
            factor = torch.randn(side, side, device=device).to(precision.computing)
            now = time.perf_counter()
    return {"tflops": best / 1e12}


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """Yield one cell for all ranks, and one for each that could not compute."""
    context, alive = coordinator.context, {member.rank: member for member in coordinator.alive}
    answers = coordinator.ask(alive, "measure_speed")
    for rank, answer in answers.items():
        if "error" in answer:
            yield Cell("speed", _name(alive[rank]), "red", str(answer["error"]), FAILED)
    speeds = {alive[rank]: _speed(each) for rank, each in answers.items() if "error" not in each}
    if len(speeds) == len(context.everyone):
        yield judge(context.config, speeds, is_cpu=context.device.type == "cpu")


def _speed(answer: Answer) -> float:
    """What a rank has measured. Raises ValueError for what no device computes at."""
    speed = float(str(answer["tflops"]))
    if not 0 < speed < math.inf:
        raise ValueError(f"{speed} TFLOP/s")
    return speed


def judge(config: TrainConfig, speeds: Mapping[Member, float], *, is_cpu: bool) -> Cell:
    """The cell of all ranks; `speeds` are in TFLOP/s."""
    members, values = list(speeds), list(speeds.values())
    slowest, fastest = min(speeds, key=speeds.__getitem__), max(speeds, key=speeds.__getitem__)
    if len(members) == 1:
        return Cell("speed", _name(slowest), "green", f"{_tflops(values[0])} in {config.precision}")
    where, both = f"{len(members)} ranks", f"{_tflops(speeds[slowest])} to {_tflops(speeds[fastest])}"
    if is_cpu:  # the ranks of a machine take cores from one another
        return Cell("speed", where, "grey", f"{both} each in {config.precision}, on shared cores")
    if speeds[fastest] < _UNEQUAL * speeds[slowest]:
        return Cell("speed", where, "green", f"{both} each in {config.precision}")
    value = f"{_tflops(speeds[slowest])} in {config.precision}; {_name(fastest)} {_tflops(speeds[fastest])}"
    return Cell("speed", _name(slowest), "yellow", value, _advice(config, values))


def _advice(config: TrainConfig, speeds: Sequence[float]) -> str:
    ranks, given = len(speeds), balance_numbers(config.balance)
    samples, table = effective_batch(config, ranks), given if len(given) == ranks else tuple(speeds)
    counts = [share_counts(samples, ranks, each) for each in ((), table)]
    equal_s, shared_s = (max(count / speed for count, speed in zip(each, speeds, strict=True)) for each in counts)
    if equal_s < _UNEQUAL * shared_s and not given:
        return f"{SLOW} A step of {samples} samples cannot be shared better than equally; a larger one can."
    gain = f"about {equal_s / shared_s:.1f} x as fast as equal shares"
    shared = f"{describe_shares(samples, ranks, table)}, {gain}"
    if config.balance != EQUAL:
        return f"With balance: {config.balance} the ranks take {shared}."
    waits = config.training_mode == "fully_sharded" or config.sync_batch_norm  # of which auto cannot measure the speed
    numbers = ", ".join(f"{speed / min(speeds):.2g}" for speed in speeds)
    return f"{SLOW} With balance: {f'[{numbers}]' if waits else AUTO} the ranks would take {shared}."


def _name(member: Member) -> str:
    return f"rank {member.rank} on {member.host}"


def _tflops(value: float) -> str:
    return f"{value:.3g} TFLOP/s"


SLOW = "The others wait for it in each step, unless it is shared with other programs now."
FAILED = "Free its memory (nvidia-smi shows who has it), or leave the device out (device_ids)."
