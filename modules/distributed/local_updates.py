"""Local updates: each machine trains by itself for some steps, then the machines agree on common weights.

DiLoCo (Douillard et al. 2023, arXiv:2311.08105, algorithm 1): the mean change of the machines' weights since the last
outer step, the pseudo-gradient, is what SGD with Nesterov momentum takes its step from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Final, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from modules.config import TrainConfig, TrainingError
from modules.distributed.ddp import same_on_all_ranks
from modules.distributed.process_group import Group
from modules.distributed.startup.member import disambiguate_hosts, ranks_by_machine
from modules.torch_compat import all_gather_single

Coding: TypeAlias = Literal["none", "fp16", "int8"]
BLOCK: Final = 256  # values that share a scale
ANCHOR, MOMENTUM = "anchor", "momentum"  # what a backup calls the two, before the name of the weight
_PIECE: Final = 4 << 20  # values that are exchanged at once, if a row of a weight is no larger
Tile: TypeAlias = tuple[str, slice | EllipsisType]  # some rows of a weight, or all of it


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

    left_out: tuple[int, ...]  # indices of machines that were not finite, so that they did not count
    loss_scale: float  # the lowest of all ranks


class LocalUpdates:
    """Averages the trained weights between machines.

    The first rank of each machine keeps two copies of them in host memory: the weights of the last outer step and its
    momentum, both in at least fp32. What rounding loses of what is sent is not kept for the next time (no error
    feedback), so that a backup needs nothing of each machine: int8 is rounded up or down at random instead, which is
    right on average, and the error of fp16 is below 1/2048 of each value, if that is not tiny beside its block's.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: TrainConfig, machines: Machines) -> None:
        """`weights` are those of this rank, the same on all."""
        self.machines = machines
        self._weights = dict(weights)
        self._rate, self._momentum_factor = config.outer_learning_rate, config.outer_momentum
        self._coding: Coding = config.outer_compression
        self._seed = config.seed
        self._pieces = list(pieces(self._weights, _PIECE))
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
    def agree(
        self,
        step: int,
        samples: int,
        loss_scale: float,
        buffers: Sequence[Tensor],
        *,
        outer: bool,
        frozen: Collection[str] = (),
        state: Iterable[Tensor] = (),
    ) -> Agreement:
        """Give all ranks the same weights and `buffers` after a step of the run; called by all.

        Without `outer` the weights become the machines' mean, each counting as its `samples` since they last agreed,
        and the pseudo-gradient goes on growing. With `outer`, they become those of an outer step with that mean; the
        weights `frozen` become the mean, and lose their momentum. Buffers become their mean, whole numbers those of
        rank 0. A machine does not count if its weights, its buffers or its optimizer's `state` are not finite. Raises
        TrainingError if that is so on all machines, or if the result differs between ranks.
        """
        checked = (*self._weights.values(), *buffers, *state) if self.machines.is_first else ()
        finite = all(bool(tensor.isfinite().all()) for tensor in checked)
        shares, left_out, lowest = self._shares(samples, loss_scale, finite=finite)
        # of this machine, what it sends; of all, what bf16 weights become
        own, common = (_generator(self._seed, step, number) for number in (1 + self.machines.index, 0))
        for piece in self._pieces:
            weights = [self._weights[name].detach()[rows] for name, rows in piece]
            agreed = None
            if self.machines.is_first:
                mean = self._mean_change(piece, weights, shares, own, self._coding if outer else "none")
                agreed = self._outer_step(piece, mean, frozen) if outer else self._moved(piece, weights, mean, common)
            self._give_to_all(weights, agreed)
        self._agree_on_buffers(buffers, shares)
        if not same_on_all_ranks([*self._weights.values(), *buffers], self.machines.group):
            raise TrainingError(
                "Local updates: after the machines had averaged their weights, these were not the same on all ranks.",
                "A GPU, memory or torch itself computes wrongly, or differs between machines; --resume latest goes on "
                "from the newest backup.",
            )
        return Agreement(left_out, lowest)

    def _shares(self, samples: int, loss_scale: float, *, finite: bool) -> tuple[list[float], tuple[int, ...], float]:
        """How much each machine counts, those that are not `finite`, which do not, and the lowest scale."""
        ranks, group = self.machines.ranks, self.machines.group
        own = torch.tensor([samples, finite, loss_scale], dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(group.world_size)]
        dist.all_gather(rows, own, group=group.control)
        first = [rows[each[0]].tolist() for each in ranks]
        counts = [seen if finite else 0.0 for seen, finite, _ in first]
        if not any(counts):  # all their steps were without a sample, or skipped
            counts = [finite for _, finite, _ in first]
        left_out = tuple(index for index, (_, finite, _) in enumerate(first) if not finite)
        if len(left_out) == len(ranks):
            raise TrainingError(
                "Local updates: the weights, buffers or optimizer states of all machines are not finite (NaN or "
                "infinity).",
                "Try a lower learning_rate, then --resume latest.",
            )
        return [count / sum(counts) for count in counts], left_out, min(float(row[2]) for row in rows)

    def _mean_change(
        self,
        piece: Sequence[Tile],
        weights: Sequence[Tensor],
        shares: Sequence[float],
        generator: torch.Generator,
        coding: Coding,
    ) -> list[Tensor]:
        """The mean of the machines' pseudo-gradients, on the CPU, a tensor for each of `weights`."""
        changes = [
            start - weight.to("cpu", start.dtype) if shares[self.machines.index] else torch.zeros_like(start)
            for start, weight in zip(self._starts(piece, weights), weights, strict=True)
        ]
        # no weight shares a block with another one, whose values may be of another size
        block = 1 if coding == "none" else BLOCK
        padded = [torch.nn.functional.pad(each.flatten(), (0, -each.numel() % block)) for each in changes]
        mean = weighted_mean(torch.cat(padded), shares, coding, self.machines.between, generator)
        parts = mean.split([len(each) for each in padded])
        return [part[: each.numel()].view(each.shape) for part, each in zip(parts, changes, strict=True)]

    def _starts(self, piece: Sequence[Tile], weights: Sequence[Tensor]) -> Iterator[Tensor]:
        """What the machines have gone on from since the last outer step: its weights, rounded to the model's dtype."""
        for (name, rows), weight in zip(piece, weights, strict=True):
            anchor = self._anchor[name][rows]
            yield anchor.to(weight.dtype).to(anchor.dtype)

    def _moved(
        self, piece: Sequence[Tile], weights: Sequence[Tensor], mean: Sequence[Tensor], generator: torch.Generator
    ) -> Tensor:
        """The machines' mean weights [N]; bf16 is rounded at random, as its steps are, or small means would be lost."""
        starts = self._starts(piece, weights)
        values = _flat(start - change for start, change in zip(starts, mean, strict=True))
        if weights[0].dtype == torch.bfloat16:
            bits = values.view(torch.int32)  # of which bf16 has the upper half
            bits.add_(torch.randint(1 << 16, bits.shape, dtype=torch.int32, generator=generator)).bitwise_and_(-1 << 16)
        return values

    def _outer_step(self, piece: Sequence[Tile], mean: Sequence[Tensor], frozen: Collection[str]) -> Tensor:
        """The weights [N] after an outer step, in at least fp32."""
        for (name, rows), change in zip(piece, mean, strict=True):
            anchor, momentum = self._anchor[name][rows], self._momentum[name][rows]
            if name in frozen:
                anchor.sub_(change)
                momentum.zero_()
            else:
                outer_step(anchor, momentum, change, self._rate, self._momentum_factor)
        return _flat(self._anchor[name][rows] for name, rows in piece)

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
        for kind, own in by_dtype(buffer for buffer in buffers if buffer.is_floating_point()).items():
            agreed = None
            if self.machines.is_first:
                values = _flat(each.to("cpu", kind) for each in own)
                sent = values if shares[self.machines.index] else torch.zeros_like(values)
                agreed = weighted_mean(sent, shares, "none", between)
            self._give_to_all(own, agreed)
        if counted := [buffer for buffer in buffers if not buffer.is_floating_point()]:
            whole = _flat(buffer.to(torch.int64) for buffer in counted)
            dist.broadcast(whole, 0)
            _unflatten(whole, counted)


def outer_step(anchor: Tensor, momentum: Tensor, mean: Tensor, learning_rate: float, factor: float) -> None:
    """SGD with Nesterov momentum, in place, with the mean pseudo-gradient as gradient; all of one shape.

    Each operation rounds by itself: with `alpha`, only processors that have FMA would round once for two operations,
    and machines come to other bits.
    """
    momentum.mul_(factor).add_(mean)
    anchor.sub_(momentum.mul(factor).add_(mean).mul_(learning_rate))


def weighted_mean(
    values: Tensor,
    shares: Sequence[float],
    coding: Coding,
    group: dist.ProcessGroup,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The mean of all ranks' `values` [N] on the CPU, which count as `shares`, one a rank; the same bits on all.

    Each rank adds up its part of the values, which it gets from all in `coding`, and sends them the mean in it: 2 (R -
    1) / R times the coded size. A rank whose share is 0 must have finite values, too. `generator`: see `encode`.
    """
    ranks = len(shares)
    part = math.ceil(values.numel() / (ranks * BLOCK)) * BLOCK
    padded = torch.nn.functional.pad(values, (0, ranks * part - values.numel()))
    sent = torch.cat([encode(each, coding, generator) for each in padded.split(part)])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    total = torch.zeros(part, dtype=torch.float64)
    for share, each in zip(shares, received.chunk(ranks), strict=True):
        total.add_(decode(each, part, coding, values.dtype).double(), alpha=share)
    own = encode(total.to(values.dtype), coding, generator)
    gathered = own.new_empty(ranks * own.numel())
    all_gather_single(gathered, own, group)
    return torch.cat([decode(each, part, coding, values.dtype) for each in gathered.chunk(ranks)])[: values.numel()]


def encode(values: Tensor, coding: Coding, generator: torch.Generator | None = None) -> Tensor:
    """The bytes, uint8 [M], of `values` [N], N a multiple of BLOCK.

    fp16 and int8 send each block's largest absolute value in fp32, or that / 127, and the values divided by it. int8
    is rounded up or down at random, by `generator`: to the nearest, values below 1/254 of the largest would always
    become 0.
    """
    if coding == "none":
        return values.view(torch.uint8)
    blocks = values.view(-1, BLOCK)
    tiny = torch.finfo(torch.float32).tiny
    scales = (blocks.abs().amax(dim=1, keepdim=True) / (127 if coding == "int8" else 1)).float().clamp(min=tiny)
    scaled = blocks / scales
    if coding == "int8":
        random = torch.rand(scaled.shape, dtype=scaled.dtype, generator=generator)
        coded = scaled.add_(random).floor_().clamp_(-127, 127).to(torch.int8)
    else:
        coded = scaled.half()
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


def by_dtype(tensors: Iterable[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """The tensors by the dtype in which they are averaged, in an order that is the same in all processes."""
    found: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(_wide(tensor), []).append(tensor)
    return found


def pieces(weights: Mapping[str, Tensor], most: int) -> Iterator[list[Tile]]:
    """What is exchanged at once: of one dtype and device, and at most `most` values, if no row has more."""
    piece: list[Tile] = []
    size, kind = 0, None
    for name, weight in weights.items():
        for rows, count in _rows(weight, most):
            if piece and (size + count > most or kind != (weight.dtype, weight.device)):
                yield piece
                piece, size = [], 0
            piece.append((name, rows))
            size, kind = size + count, (weight.dtype, weight.device)
    if piece:
        yield piece


def _rows(weight: Tensor, most: int) -> Iterator[tuple[slice | EllipsisType, int]]:
    """The parts of a weight of at most `most` values, and how many each has; views of it, however it is strided."""
    if weight.numel() <= most:
        yield ..., weight.numel()
        return
    width = weight.numel() // len(weight)
    rows = max(1, most // width)
    for start in range(0, len(weight), rows):
        yield slice(start, start + rows), min(rows, len(weight) - start) * width


def _generator(*parts: int) -> torch.Generator:
    """Random numbers on the CPU, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _unflatten(values: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor, part in zip(tensors, values.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
