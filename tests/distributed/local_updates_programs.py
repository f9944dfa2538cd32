"""Programs for the processes of test_local_updates, each of which is a machine of its own."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.config import TrainConfig
from modules.distributed import LocalUpdates, Machines, RankEnv, cleanup_distributed, setup_distributed

START = (1.5, 1.0, 2.0)  # of the weights "a" and "b", and the buffer
ROUNDS = 40


def agreements(rank_env: RankEnv, folder: Path) -> None:
    """Each rank writes what it found to FOLDER/rank-N.pt, see the tests."""
    os.environ["GROUP_RANK"] = str(rank_env.rank)
    torch.manual_seed(rank_env.rank)
    group = setup_distributed(timeout_s=60)
    machines, rank = Machines(group), rank_env.rank
    found = {
        "frozen": _frozen(machines, rank),
        "poisoned buffer": _left_out(machines, rank, buffer=math.nan),
        "poisoned state": _left_out(machines, rank, state=math.inf),
        "bf16": _bf16(machines, rank, outer=True),
        "bf16 mean": _bf16(machines, rank, outer=False),
        "mean": _mean(machines, rank),
    }
    torch.save(found, folder / f"rank-{rank}.pt")
    cleanup_distributed()


def _made(machines: Machines, weights: dict[str, Tensor], **settings: Any) -> LocalUpdates:
    return LocalUpdates(weights, TrainConfig.model_validate(settings), machines)


def _frozen(machines: Machines, rank: int) -> list[float]:
    """The weight "b" after each outer step: it moves up to the second, and is frozen from the third on."""
    weights = {"a": torch.full((3,), START[0]), "b": torch.full((300,), START[1])}
    updates, found = _made(machines, weights), []
    for step in range(1, 6):
        weights["a"] -= 0.1 * (1 + rank)
        if step <= 2:
            weights["b"] -= 0.1
        updates.agree(step, 8, 1.0, [], outer=True, frozen={"b"} if step > 2 else ())
        found.append(float(weights["b"][0]))
    momentum = updates.state()["momentum/b"]
    return [*found, float(momentum.abs().max())]


def _left_out(machines: Machines, rank: int, buffer: float = 0.0, state: float = 0.0) -> Sequence[object]:
    """Who was left out if machine 1 has such numbers, the weight and the buffer after it."""
    weights, buffers, kept = {"a": torch.full((3,), START[0])}, torch.full((2,), START[2]), torch.zeros(4)
    updates = _made(machines, weights, outer_learning_rate=1.0, outer_momentum=0.0, outer_compression="none")
    weights["a"] -= 0.25 * (1 + rank)
    if rank == 1:
        buffers += buffer
        kept += state
    left_out = updates.agree(1, 8, 1.0, [buffers], outer=True, state=[kept]).left_out
    return left_out, float(weights["a"][0]), float(buffers[0])


def _bf16(machines: Machines, rank: int, *, outer: bool) -> float:
    """How far a bf16 weight has come in ROUNDS of which each moves a third of its values by a last place."""
    weights = {"a": torch.full((30_000,), START[0], dtype=torch.bfloat16)}
    updates = _made(machines, weights, outer_learning_rate=1.0, outer_momentum=0.0, outer_compression="none")
    for step in range(1, 1 + ROUNDS):
        moved = torch.rand(weights["a"].shape) < 1 / 3
        weights["a"] -= moved * 2.0**-7
        updates.agree(step, 8, 1.0, [], outer=outer)
    return START[0] - float(weights["a"].double().mean())


def _mean(machines: Machines, rank: int) -> bool:
    """Whether a mean without an outer step keeps small values beside large ones, whatever the coding."""
    weights = {"a": torch.zeros(300), "b": torch.zeros(300)}
    updates = _made(machines, weights, outer_compression="int8")
    weights["a"] += torch.linspace(0, 1e-3, 300)
    weights["a"][0] = 1.0
    updates.agree(1, 8, 1.0, [], outer=False)
    return torch.allclose(weights["a"][1:], torch.linspace(0, 1e-3, 300)[1:], rtol=1e-4, atol=1e-7)
