"""Local updates: each machine trains by itself for some steps, then the machines agree on common weights.

DiLoCo (Douillard et al. 2023, arXiv:2311.08105, algorithm 1): the mean change of the machines' weights since the last
outer step, the pseudo-gradient, is what SGD with Nesterov momentum takes its step from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from modules.config import TrainConfig, TrainingError
from modules.distributed.ddp import same_on_all_ranks
from modules.distributed.formatting import join_with_and
from modules.distributed.process_group import Group
from modules.distributed.startup.member import disambiguate_hosts, ranks_by_machine
from modules.torch_compat import all_gather_single

Coding: TypeAlias = Literal["none", "fp16", "int8"]
BLOCK: Final = 256  # values that share a scale
ANCHOR, MOMENTUM = "anchor", "momentum"  # what a backup calls the two, before the name of the weight
_PIECE: Final = 4 << 20  # values that are exchanged at once, if a weight is no larger


class Machines:
    """The ranks of a run by machine. Made by all ranks at once."""

    def __init__(self, group: Group) -> None:
        self.ranks = ranks_by_machine(group.members)
        self.names = [disambiguate_hosts(group.members)[ranks[0]].host for ranks in self.ranks]
        self.index = next(index for index, ranks in enumerate(self.ranks) if group.rank in ranks)
        self.first_rank = self.ranks[self.index][0]
        self.is_first = group.rank == self.first_rank
        self.inside: dist.ProcessGroup = [dist.new_group(ranks) for ranks in self.ranks][self.index]  # of this machine
        # CPU tensors between the first ranks of all machines; elsewhere not to be used
        self.between = dist.new_group([ranks[0] for ranks in self.ranks], backend="gloo")
        group.inner.extend([self.inside, self.between] if self.is_first else [self.inside])
        self.group = group


@dataclass(frozen=True)
class Agreement:
    """What all ranks know after the machines have agreed."""

    left_out: str  # the machines whose weights were not finite, so that they did not count; empty if there are none
    loss_scale: float  # the lowest of all ranks


class LocalUpdates:
    """Averages the trained weights between machines.

    The first rank of each machine keeps two copies of them in host memory: the weights of the last outer step and its
    momentum, both in at least fp32. A rounding error of what is sent is not kept for the next time (no error feedback):
    all machines go on from the same weights, so errors do not add up, and a backup needs nothing of each machine.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: TrainConfig, machines: Machines) -> None:
        """`weights` are those of this rank, the same on all."""
        self.machines = machines
        self._weights = dict(weights)
        self._rate, self._momentum_factor = config.outer_learning_rate, config.outer_momentum
        self._coding: Coding = config.outer_compression
        self._pieces = list(_pieces(self._weights))
        self._anchor: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self.restart({})

    def restart(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from the weights as they are, with the `saved` state of a backup; without one, this is an outer step
        without momentum. Raises KeyError or ValueError if it is of other weights."""
        if not self.machines.is_first:
            return
        for name, weight in self._weights.items():
            # once each: they may come from a file
            anchor = saved[f"{ANCHOR}/{name}"] if saved else weight.detach()
            momentum = saved[f"{MOMENTUM}/{name}"] if saved else torch.zeros(weight.shape)
            for found in (anchor, momentum):
                if found.shape != weight.shape:
                    raise ValueError(f"the outer state of {name} has the shape {list(found.shape)}")
            self._anchor[name] = anchor.to("cpu", _wide(weight), copy=True)
            self._momentum[name] = momentum.to("cpu", _wide(weight), copy=True)

    def state(self) -> dict[str, Tensor]:
        """What a backup holds, on rank 0; not copied."""
        kinds = {ANCHOR: self._anchor, MOMENTUM: self._momentum}
        return {f"{kind}/{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}

    @torch.no_grad()
    def agree(self, samples: int, loss_scale: float, buffers: Sequence[Tensor], *, outer: bool) -> Agreement:
        """Give all ranks the same weights and `buffers`; called by all.

        Without `outer` the weights become the machines' mean, each counting as its `samples` since they last agreed,
        and the pseudo-gradient goes on growing. With `outer`, they become those of an outer step with that mean.
        Buffers become their mean, whole numbers those of rank 0. Raises TrainingError if no machine's weights are
        finite, or if the result differs between ranks.
        """
        shares, left_out, lowest = self._shares(samples, loss_scale)
        for names in self._pieces:
            weights = [self._weights[name] for name in names]
            agreed = self._step(names, weights, shares, outer=outer) if self.machines.is_first else None
            self._give_to_all(weights, agreed)
        self._agree_on_buffers(buffers, shares)
        if not same_on_all_ranks([*self._weights.values(), *buffers], self.machines.group):
            raise TrainingError(
                "Local updates: after the machines had averaged their weights, these were not the same on all ranks.",
                "A GPU, memory or torch itself computes wrongly, or differs between machines; --resume latest goes on "
                "from the newest backup.",
            )
        names = [name for name, share in zip(self.machines.names, shares, strict=True) if name in left_out]
        return Agreement(join_with_and(names), lowest)

    def _shares(self, samples: int, loss_scale: float) -> tuple[list[float], list[str], float]:
        """How much each machine counts, those whose weights are not finite, which do not, and the lowest scale."""
        ranks, group = self.machines.ranks, self.machines.group
        is_finite = not self.machines.is_first or all(bool(w.isfinite().all()) for w in self._weights.values())
        own = torch.tensor([samples, is_finite, loss_scale], dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(group.world_size)]
        dist.all_gather(rows, own, group=group.control)
        first = [rows[each[0]].tolist() for each in ranks]
        counts = [seen if finite else 0.0 for seen, finite, _ in first]
        if not any(counts):  # all their steps were without a sample
            counts = [finite for _, finite, _ in first]
        left_out = [name for name, (_, finite, _) in zip(self.machines.names, first, strict=True) if not finite]
        if len(left_out) == len(ranks):
            raise TrainingError(
                "Local updates: the weights of all machines are not finite (NaN or infinity).",
                "Try a lower learning_rate, then --resume latest.",
            )
        return [count / sum(counts) for count in counts], left_out, min(float(row[2]) for row in rows)

    def _step(self, names: Sequence[str], weights: Sequence[Tensor], shares: Sequence[float], *, outer: bool) -> Tensor:
        """The new values [N] of some weights, on the CPU."""
        anchor = _flat(self._anchor[name] for name in names)
        own = _flat(weight.detach().to("cpu", anchor.dtype) for weight in weights)
        change = anchor - own if shares[self.machines.index] else torch.zeros_like(anchor)
        mean = weighted_mean(change, shares, self._coding, self.machines.between)
        if not outer:
            return anchor - mean
        momentum = _flat(self._momentum[name] for name in names)
        outer_step(anchor, momentum, mean, self._rate, self._momentum_factor)
        _unflatten(anchor, [self._anchor[name] for name in names])
        _unflatten(momentum, [self._momentum[name] for name in names])
        return anchor

    def _give_to_all(self, tensors: Sequence[Tensor], values: Tensor | None) -> None:
        """Set `tensors` to `values` [N] of this machine's first rank."""
        inside, device = self.machines.inside, tensors[0].device
        if values is None:
            values = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=_wide(tensors[0]), device=device)
        values = values.to(device)
        if dist.get_world_size(inside) > 1:
            dist.broadcast(values, self.machines.first_rank, inside)
        _unflatten(values, tensors)

    def _agree_on_buffers(self, buffers: Sequence[Tensor], shares: Sequence[float]) -> None:
        between = self.machines.between
        averaged = [buffer for buffer in buffers if buffer.is_floating_point()]
        for kind in {_wide(buffer) for buffer in averaged}:
            own = [buffer for buffer in averaged if _wide(buffer) == kind]
            agreed = None
            if self.machines.is_first:
                agreed = weighted_mean(_flat(each.to("cpu", kind) for each in own), shares, "none", between)
            self._give_to_all(own, agreed)
        if counted := [buffer for buffer in buffers if not buffer.is_floating_point()]:
            whole = _flat(buffer.to(torch.int64) for buffer in counted)
            dist.broadcast(whole, 0)
            _unflatten(whole, counted)


def outer_step(anchor: Tensor, momentum: Tensor, mean: Tensor, learning_rate: float, factor: float) -> None:
    """SGD with Nesterov momentum, in place, with the mean pseudo-gradient as gradient; all of one shape."""
    momentum.mul_(factor).add_(mean)
    anchor.sub_(mean.add(momentum, alpha=factor), alpha=learning_rate)


def weighted_mean(values: Tensor, shares: Sequence[float], coding: Coding, group: dist.ProcessGroup) -> Tensor:
    """The mean of all ranks' `values` [N] on the CPU, which count as `shares`, one a rank; the same bits on all.

    Each rank adds up its part of the values, which it gets from all in `coding`, and sends them the mean in it: 2 (R -
    1) / R times the coded size. A rank whose share is 0 must have finite values, too.
    """
    ranks = len(shares)
    part = math.ceil(values.numel() / (ranks * BLOCK)) * BLOCK
    padded = torch.nn.functional.pad(values, (0, ranks * part - values.numel()))
    sent = torch.cat([encode(each, coding) for each in padded.split(part)])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    total = torch.zeros(part, dtype=torch.float64)
    for share, each in zip(shares, received.chunk(ranks), strict=True):
        total.add_(decode(each, part, coding, values.dtype).double(), alpha=share)
    own = encode(total.to(values.dtype), coding)
    gathered = own.new_empty(ranks * own.numel())
    all_gather_single(gathered, own, group)
    return torch.cat([decode(each, part, coding, values.dtype) for each in gathered.chunk(ranks)])[: values.numel()]


def encode(values: Tensor, coding: Coding) -> Tensor:
    """The bytes, uint8 [M], of `values` [N], N a multiple of BLOCK.

    fp16 and int8 send each block's largest absolute value in fp32, or that / 127, and the values divided by it.
    """
    if coding == "none":
        return values.view(torch.uint8)
    blocks = values.view(-1, BLOCK)
    tiny = torch.finfo(torch.float32).tiny
    scales = (blocks.abs().amax(dim=1, keepdim=True) / (127 if coding == "int8" else 1)).float().clamp(min=tiny)
    scaled = blocks / scales
    coded = scaled.round().to(torch.int8) if coding == "int8" else scaled.half()
    return torch.cat([scales.view(torch.uint8).flatten(), coded.view(torch.uint8).flatten()])


def decode(coded: Tensor, count: int, coding: Coding, dtype: torch.dtype) -> Tensor:
    """The `count` values [N] that `encode` has made bytes of."""
    if coding == "none":
        return coded.view(dtype)
    end_of_scales = 4 * count // BLOCK
    scales = coded[:end_of_scales].clone().view(torch.float32)  # a view must begin at a multiple of 4 bytes
    values = coded[end_of_scales:].view(torch.int8 if coding == "int8" else torch.float16).view(-1, BLOCK)
    found: Tensor = values.to(dtype) * scales.to(dtype).unsqueeze(1)
    return found.flatten()


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _unflatten(values: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor, part in zip(tensors, values.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def _pieces(weights: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """The names of what is exchanged at once: of one dtype and device, and at most _PIECE values."""
    names: list[str] = []
    for name, weight in weights.items():
        last = weights[names[-1]] if names else weight
        size = sum(weights[each].numel() for each in names) + weight.numel()
        if names and (size > _PIECE or (last.dtype, last.device) != (weight.dtype, weight.device)):
            yield names
            names = []
        names.append(name)
    if names:
        yield names
