"""Weights that take no part in the loss, told by name.

One forward's graph is followed before the first step: DDP would find out a step later, or hang where a weight is unused
on one rank only. What changes in later steps DDP does find, and its message is put into words here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node

from modules.config import ConfigError, TrainConfig, TrainingError

SHOWN = 3
NOTHING_UNUSED = (
    "find_unused_parameters is on, but every trained weight took part in the first step; "
    "if that is so in every step, switching it off makes steps faster."
)
DDP_FOUND = "expected to have finished reduction in the prior iteration"
DDP_STATIC = "training graph has changed"
DDP_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
HIDING = "CheckpointFunctionBackward"  # reentrant checkpointing: its inside is not in the graph yet


def check_unused(trained: Mapping[str, Tensor], losses: Tensor, config: TrainConfig, control: dist.ProcessGroup) -> str:
    """After the first forward, on every rank alike: a warning where find_unused_parameters is on in vain, else nothing.

    Raises ConfigError, with names, where trained weights are unused on some rank and the config does not say so.
    """
    used = reached_from(losses)
    unused = [used is not None and id(weight) not in used for weight in trained.values()]
    ranks = torch.tensor(unused, dtype=torch.int64)
    dist.all_reduce(ranks, group=control)
    names = {name: int(count) for name, count in zip(trained, ranks.tolist(), strict=True) if count}
    if config.static_graph:
        return ""
    if config.find_unused_parameters:
        return "" if names else NOTHING_UNUSED
    if names:
        raise _unused(names, len(trained), dist.get_world_size(control))
    return ""


@contextmanager
def told_by_name(model: nn.Module) -> Iterator[None]:
    """Around every step: raises TrainingError, with names, where DDP finds other weights in use than promised."""
    try:
        yield
    except RuntimeError as error:
        if (told := _put_into_words(str(error), list(_trained(model)))) is None:
            raise
        raise told from error


def reached_from(losses: Tensor) -> set[int] | None:
    """The ids of all leaves that `losses` depends on; None where a part of the graph cannot be seen."""
    waiting: list[Node] = [] if losses.grad_fn is None else [losses.grad_fn]
    seen = set(waiting)
    leaves = set()
    while waiting:
        node = waiting.pop()
        if node.name() == HIDING:
            return None
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        following = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= following
        waiting += following
    return leaves


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _unused(names: dict[str, int], trained: int, world_size: int) -> ConfigError:
    somewhere = sum(count < world_size for count in names.values())
    where = f" ({somewhere} of them on some processes only)" if somewhere else ""
    return ConfigError(
        f"{len(names)} of {trained} trained weights took no part in the first step's loss{where}: {_few(names)}.",
        "If that is meant to be, set find_unused_parameters=true, which is slower; "
        "otherwise freeze them (requires_grad=False) or use them in the family's loss.",
    )


def _put_into_words(message: str, trained: Sequence[str]) -> TrainingError | None:
    """DDP's error as a sentence; None where it is about something else."""
    static = DDP_STATIC in message.lower()
    if not static and DDP_FOUND not in message.lower():
        return None
    found = DDP_INDICES.search(message)
    unused = [trained[int(index)] for index in found[1].split()] if found else []
    who = f": {len(unused)} of {len(trained)} took no part ({_few(unused)})" if unused else ""
    if static:
        return TrainingError(
            f"static_graph is on, but a step used other weights than the first{who}.", "Set static_graph=false."
        )
    return TrainingError(
        f"A step did not use all trained weights{who}.",
        "Set find_unused_parameters=true, and go on with --resume latest.",
    )


def _few(names: Iterable[str]) -> str:
    first, *others = [repr(name) for name in names]
    shown = [first, *others[: SHOWN - 1]]
    return ", ".join(shown) + (f" and {len(others) + 1 - SHOWN} more" if len(others) >= SHOWN else "")
