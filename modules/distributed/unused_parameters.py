"""Find trained weights that do not contribute to the loss, and report them by name.

The autograd graph of one forward is searched before the first step: DDP would notice a step later, or hang if a weight
is unused on one rank only. Changes in later steps are detected by DDP, whose error message is translated here.
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
from modules.distributed.formatting import first_names

NAMES_SHOWN = 3
NOTHING_UNUSED = (
    "find_unused_parameters is on, but every trained weight was used in the first step; "
    "if that holds for every step, switching it off makes steps faster."
)
DDP_FOUND = "expected to have finished reduction in the prior iteration"
DDP_STATIC = "training graph has changed"
DDP_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
OPAQUE_NODE = "CheckpointFunctionBackward"  # reentrant checkpointing: the part inside is not in the graph yet


def check_unused_parameters(
    trained: Mapping[str, Tensor], losses: Tensor, config: TrainConfig, control: dist.ProcessGroup
) -> str:
    """Run on every rank after the first forward; returns a warning if find_unused_parameters is not needed, else "".

    `trained` maps names to leaf tensors of the graph, `losses` is the forward's output [B]. Raises ConfigError, with
    names, if trained weights are unused on some rank and the config does not allow it.
    """
    used = reachable_leaves(losses)
    unused = [used is not None and id(weight) not in used for weight in trained.values()]
    counts = torch.tensor(unused, dtype=torch.int64)
    dist.all_reduce(counts, group=control)
    names = {name: int(count) for name, count in zip(trained, counts.tolist(), strict=True) if count}
    if config.static_graph:
        return ""
    if config.find_unused_parameters:
        return "" if names else NOTHING_UNUSED
    if not names:
        return ""
    somewhere = sum(count < dist.get_world_size(control) for count in names.values())
    only_some = f" ({somewhere} of them on some processes only)" if somewhere else ""
    raise ConfigError(
        f"{len(names)} of {len(trained)} trained weights did not contribute to the first step's loss{only_some}: "
        f"{_quoted(names)}.",
        "If that is intended, set find_unused_parameters=true, which is slower; "
        "otherwise freeze them (requires_grad=False) or use them in the family's loss.",
    )


@contextmanager
def explain_ddp_errors(model: nn.Module) -> Iterator[None]:
    """Around every step: turns DDP's errors about unused weights into a TrainingError with names."""
    try:
        yield
    except RuntimeError as error:
        trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
        if (explained := _explain(str(error), trained)) is None:
            raise
        raise explained from error


def reachable_leaves(losses: Tensor) -> set[int] | None:
    """The ids of all leaf tensors that `losses` [B] depends on; None if a part of the graph is not visible."""
    pending: list[Node] = [] if losses.grad_fn is None else [losses.grad_fn]
    seen = set(pending)
    leaves = set()
    while pending:
        node = pending.pop()
        if node.name() == OPAQUE_NODE:
            return None
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        following = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= following
        pending += following
    return leaves


def _explain(message: str, trained: Sequence[str]) -> TrainingError | None:
    """DDP's error in plain words; None if it is about something else."""
    static = DDP_STATIC in message.lower()
    if not static and DDP_FOUND not in message.lower():
        return None
    found = DDP_INDICES.search(message)
    unused = [trained[int(index)] for index in found[1].split()] if found else []
    which = f": {len(unused)} of {len(trained)} were not used ({_quoted(unused)})" if unused else ""
    if static:
        return TrainingError(
            f"static_graph is on, but a step used different weights from the first{which}.", "Set static_graph=false."
        )
    return TrainingError(
        f"A step did not use all trained weights{which}.",
        "Set find_unused_parameters=true and continue with --resume latest.",
    )


def _quoted(names: Iterable[str]) -> str:
    return first_names([repr(name) for name in names], NAMES_SHOWN)
