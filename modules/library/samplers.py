"""Samplers that give every sample of an epoch to exactly one rank: none is dropped, none repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class DistributedSampler(Sampler[int]):
    """This rank's samples of an epoch, for DataLoader's `sampler`: those at rank, rank + world_size, ... of its order.

    Unlike torch's sampler of the same name, which repeats samples or drops them until all ranks have equally many, the
    ranks may differ by one sample (`lengths`), and so perhaps by one batch. That is right for validation, with
    `reduce_mean(..., weight=samples)`. A training loop with DistributedDataParallel, whose backward all ranks run
    equally often, either has `with model.join():` around it, or takes DistributedBatchSampler.

    The order of an epoch depends on `seed` and the epoch alone, never on the number of ranks.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.size = _size(data)
        self.rank, self.world_size = _place(rank, world_size)
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; call it before each one."""
        self.epoch = epoch

    @property
    def lengths(self) -> list[int]:
        """The number of samples of each rank."""
        return [len(range(rank, self.size, self.world_size)) for rank in range(self.world_size)]

    def __len__(self) -> int:
        return self.lengths[self.rank]

    def __iter__(self) -> Iterator[int]:
        return iter(_order(self.size, self.seed, self.epoch, self.shuffle)[self.rank :: self.world_size])


class DistributedBatchSampler(Sampler[list[int]]):
    """This rank's batches of an epoch, for DataLoader's `batch_sampler`: equally many on every rank, uneven at the end.

    A step takes batch_size x world_size samples of the epoch's order, and the last step what is left, which the ranks
    share as evenly as possible. A rank that gets none computes one sample that does not count, because every rank must
    take part in the step. `loss_scales` makes the step exact: DistributedDataParallel averages gradients over the
    ranks, so that the mean over all n samples of a step needs each rank's mean loss, over its n_r samples, times
    world_size * n_r / n. With `drop_last` that step is left out instead, and all scales are 1:

        for (x, y), scale in zip(loader, sampler.loss_scales(), strict=True):
            loss = F.mse_loss(model(x), y) * scale

    The order of an epoch depends on `seed` and the epoch alone, never on the number of ranks.
    """

    def __init__(
        self,
        data: Sized | int,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not isinstance(batch_size, int):
            raise TypeError(f"batch_size is {batch_size}; it must be a whole number")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be 1 or more, per rank")
        self.size, self.batch_size = _size(data), batch_size
        self.rank, self.world_size = _place(rank, world_size)
        per_step = batch_size * self.world_size
        self._used = self.size // per_step * per_step if drop_last else self.size
        if not self._used:
            raise ValueError(
                f"the data set has {self.size} samples, fewer than the {per_step} of a step, and drop_last leaves them "
                "out; lower batch_size or switch drop_last off"
            )
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; call it before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self._used // (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[list[int]]:
        order = _order(self.size, self.seed, self.epoch, self.shuffle)
        per_step = self.batch_size * self.world_size
        for start in range(0, self._used, per_step):
            step = order[start : start + per_step]
            yield step[self.rank :: self.world_size] or step[:1]

    def counts(self) -> list[int]:
        """How many samples of each batch count: its length, or 0 for one that only keeps this rank in step."""
        per_step = self.batch_size * self.world_size
        steps = (min(per_step, self._used - start) for start in range(0, self._used, per_step))
        return [len(range(self.rank, samples, self.world_size)) for samples in steps]

    def loss_scales(self) -> list[float]:
        """The factor of each batch's mean loss: world_size * n_r / n, which is 1 in all steps but perhaps the last."""
        per_step = self.batch_size * self.world_size
        samples = [min(per_step, self._used - start) for start in range(0, self._used, per_step)]
        return [self.world_size * own / all_ranks for own, all_ranks in zip(self.counts(), samples, strict=True)]


def _order(size: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    if not shuffle:
        return list(range(size))
    # two numbers into one seed, as numpy and torch mix them badly if they are only added
    generator = torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + epoch) % (1 << 63))
    return torch.randperm(size, generator=generator).tolist()


def _size(data: Sized | int) -> int:
    size = data if isinstance(data, int) else len(data)
    if size < 1:
        raise ValueError(f"the data set has {size} samples; at least one is needed")
    return size


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """As given, or as this process's in its group; alone without one."""
    in_group = dist.is_initialized()
    world_size = (dist.get_world_size() if in_group else 1) if world_size is None else world_size
    rank = (dist.get_rank() if in_group else 0) if rank is None else rank
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} and world_size {world_size}; ranks go from 0 to world_size - 1")
    return rank, world_size
