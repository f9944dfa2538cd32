"""Keeps a model's buffers, such as BatchNorm's running statistics, equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modules.distributed.process_group import Group


class BufferSync:
    """Gives all ranks, or those of one machine, the same buffers at the end of a step, in one all-reduce.

    A floating-point buffer becomes b + mean over the ranks of (b_r - b), where b is its value before the step and b_r
    rank r's after it: BatchNorm's running averages then follow the samples of all ranks, as on one device. Integers
    and booleans, such as BatchNorm's counter of batches, become the first rank's. Complex buffers are left alone.

    Nothing is sent in a forward, as DDP does it, so a rank may repeat a forward in which its memory ran out.
    """

    def __init__(self, model: nn.Module, group: Group, over: dist.ProcessGroup | None = None) -> None:
        """`over`: only those ranks."""
        self._group, self._over = group, over
        self._places = [
            (module, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and not buffer.is_complex()
        ]
        self._before: list[Tensor] = []

    def start(self) -> None:
        """The ranks' buffers are equal now. Before the first step, and after restoring a backup."""
        self._before = [buffer.clone() for buffer in self.changing()]

    def keep_changed(self) -> None:
        """After a forward: from now on only buffers are sent that it changed on any rank since `start`.

        They get back their values of then.
        """
        changed = [not torch.equal(now, then) for now, then in zip(self.changing(), self._before, strict=True)]
        counts = torch.tensor(changed, dtype=torch.int64)
        dist.all_reduce(counts, group=self._group.control)
        for buffer, before in zip(self.changing(), self._before, strict=True):
            buffer.copy_(before)
        kept = [number for number, count in enumerate(counts.tolist()) if count]
        self._places = [self._places[number] for number in kept]
        self._before = [self._before[number] for number in kept]

    @torch.no_grad()
    def sync(self) -> None:
        """At the end of each step, on every rank; does nothing for a model without buffers that change."""
        if not self._places:
            return
        buffers = self.changing()
        changes = [self._change(now, then).flatten() for now, then in zip(buffers, self._before, strict=True)]
        sums = torch.cat(changes)
        dist.all_reduce(sums, group=self._over)
        parts = sums.split([change.numel() for change in changes])
        for buffer, before, part in zip(buffers, self._before, parts, strict=True):
            before.copy_(before.double() + part.view_as(before))
            buffer.copy_(before)

    @contextmanager
    def kept(self, *, when: bool) -> Iterator[None]:
        """What happens inside the block changes no buffer, if `when`."""
        before = [buffer.clone() for buffer in self.changing()] if when else []
        yield
        for buffer, value in zip(self.changing() if when else [], before, strict=True):
            buffer.copy_(value)

    def _change(self, now: Tensor, before: Tensor) -> Tensor:
        """What this rank adds to the new value of a buffer, fp64 like the buffer."""
        change = now.double() - before.double()
        if now.is_floating_point():
            return change / dist.get_world_size(self._over)
        return change if dist.get_rank(self._over) == 0 else torch.zeros_like(change)

    def changing(self) -> list[Tensor]:
        """The buffers, looked up each time, as a module may replace them."""
        return [module.get_buffer(name) for module, name in self._places]
